"""Rules over telemetry that need no profile of healthy runs: facts, and changes against a run's own start."""
