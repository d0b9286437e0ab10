"""Stack executor: all clients of a job at once."""
