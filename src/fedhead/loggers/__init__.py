"""Loggers, which send a run's records to other tools during training; one file each."""
