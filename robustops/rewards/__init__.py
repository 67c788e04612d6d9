"""Reward parts of an episode and their combination."""
