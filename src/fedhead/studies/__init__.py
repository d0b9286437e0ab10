"""Studies: many runs as a sweep or a search."""
