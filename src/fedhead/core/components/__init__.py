"""Components by name: registries, parameters and their ranges."""
