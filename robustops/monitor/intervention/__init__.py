"""What is done about a run that went wrong: typed actions, planners, canary, journal; no torch."""
