"""Errors, logging and helpers around the operating system."""
