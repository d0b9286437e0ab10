"""What a run is made of: the experiment with its components and numbers, its checks, and where it is computed."""
