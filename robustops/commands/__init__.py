"""One module a command; only this package and `schema.py` know Hydra."""
