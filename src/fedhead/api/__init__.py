"""The Python interface: functions that take arrays and models and return finished runs."""
