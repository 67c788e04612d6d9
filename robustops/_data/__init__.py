"""Only in the wheel: the embedded model from the checkout's `data/` (see package-dir in pyproject.toml)."""
