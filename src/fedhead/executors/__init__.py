"""Executors, which train clients one after another or many at once; they know nothing of rounds."""
