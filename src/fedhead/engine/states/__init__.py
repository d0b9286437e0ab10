"""Client states between rounds."""
