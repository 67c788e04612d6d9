"""What others would do: each is a `monitor.detector.Detector` or a `monitor.diagnoser.Diagnoser`."""
