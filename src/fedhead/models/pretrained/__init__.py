"""Pretrained models, and models of other libraries."""
