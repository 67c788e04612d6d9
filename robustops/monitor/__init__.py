"""Telemetry and run monitoring; no torch."""
