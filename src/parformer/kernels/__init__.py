"""Faster ways to compute what plain torch defines."""
