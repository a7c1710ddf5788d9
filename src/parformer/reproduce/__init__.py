"""The papers' tables and figures as runnable comparisons: published and ours, side by side."""
