"""Experiments: components, schedule, validation and compute options of a run."""
