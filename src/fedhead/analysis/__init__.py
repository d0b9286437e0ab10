"""Analyses of trained federations."""
