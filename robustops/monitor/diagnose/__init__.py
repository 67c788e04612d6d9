"""Diagnosis of run failures: from a run's temporal fingerprint to probabilities of the types.

Inference takes numpy alone; scikit-learn (extra `faultbench`) is used to learn. `diagnosis` is the diagnoser.
"""
