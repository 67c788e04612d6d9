"""RobustOps: worlds whose tools fail, a trainer that teaches agents to recover, and a run monitor."""

__version__ = "0.1.0"
