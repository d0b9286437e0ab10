"""Benchmarks of executors on this machine."""
