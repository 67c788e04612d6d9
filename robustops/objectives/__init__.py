"""Pure functions on tensors: advantages, credit, losses, statistics."""
