"""Comparison of runs: tables, statistics, rank diagrams."""
