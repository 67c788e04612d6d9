"""A campaign of runs: planned, made, verified, and turned into a data set."""
