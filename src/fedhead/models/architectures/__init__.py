"""Architectures by name."""
