"""Engine: trains methods and stages over all clients, round by round."""
