"""The parts of a run: the experiment with its components and numbers, its checks, and where it is computed."""
