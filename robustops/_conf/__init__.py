"""Only in the wheel: a copy of the checkout's `conf/` (package-dir in pyproject.toml puts it here)."""
