"""Worlds served to other programs."""
