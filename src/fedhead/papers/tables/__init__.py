"""Paper tables: sweeps with published values, and the results page."""
