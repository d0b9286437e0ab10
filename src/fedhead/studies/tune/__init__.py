"""Tuning: a search for the best values of recipe keys."""
