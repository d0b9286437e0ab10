"""Recipes: run configs in YAML files, and the experiments built from them."""
