"""States that clients keep between rounds."""
