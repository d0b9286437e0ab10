"""One client's round: its program, steps and jobs."""
