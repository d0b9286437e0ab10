"""Run folders: writing, reading, checkpoints and resuming."""
