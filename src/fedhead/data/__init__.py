"""Data sets, their partition over clients, and the transform that turns stored samples into a model's input."""
