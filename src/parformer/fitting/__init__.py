"""The main job: text and a budget in, the best model that fits out, with proof."""
