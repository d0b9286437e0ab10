"""Python API: functions that take data and models and return finished runs."""
