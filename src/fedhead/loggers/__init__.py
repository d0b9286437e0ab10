"""Loggers: what carries a run's records elsewhere while it runs, one file each."""
