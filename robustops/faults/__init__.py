"""Faults injected at the tool boundary: mechanisms, scheduling, wrapper, branching, manifests."""
