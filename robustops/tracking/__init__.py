"""Run store, loggers, comparison."""
