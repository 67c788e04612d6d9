"""Sampling of episodes: rendering, samplers, collector."""
