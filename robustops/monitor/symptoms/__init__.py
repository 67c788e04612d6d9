"""Rules over a run's telemetry that need no profile of healthy runs: facts, and changes against its own start."""
