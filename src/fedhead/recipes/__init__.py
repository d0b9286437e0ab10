"""Recipes: settings in a YAML file, and the experiment that they describe."""
