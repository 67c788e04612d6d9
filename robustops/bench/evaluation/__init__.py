"""Detectors and diagnosers held against the benchmark's data set, under one protocol."""
