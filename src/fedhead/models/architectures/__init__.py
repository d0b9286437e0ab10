"""Architectures, registered in `fedhead.models.MODELS`."""
