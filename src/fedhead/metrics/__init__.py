"""Metrics of models, and records of runs."""
