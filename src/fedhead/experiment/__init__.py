"""Experiments: recipes, run folders, and the way from the one to the other."""
