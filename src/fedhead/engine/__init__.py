"""The engine: it owns the client axis, and runs what methods and stages say."""
