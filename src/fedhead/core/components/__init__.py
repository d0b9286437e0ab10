"""Components: registries, parameters and their ranges."""
