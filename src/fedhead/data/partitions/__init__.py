"""Partitions of samples over clients."""
