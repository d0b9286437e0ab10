"""Data sets, their partition over clients, and the transforms that turn stored samples into model inputs."""
