"""Runs that train together: the clients of all of them in common stacks."""
