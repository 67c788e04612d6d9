"""Interventions on the runs of a campaign: which are remedied, how a case is made, what came of it."""
