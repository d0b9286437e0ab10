"""Federations: samples distributed over clients."""
