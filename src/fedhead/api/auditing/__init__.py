"""Attacks on runs and on statistics of sites."""
