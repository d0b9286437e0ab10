"""Transforms from stored samples to model inputs."""
