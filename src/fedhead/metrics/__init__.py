"""Metrics of models, and the records that hold them."""
