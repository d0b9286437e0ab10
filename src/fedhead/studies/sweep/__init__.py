"""Sweeps: the runs of a grid of recipe keys."""
