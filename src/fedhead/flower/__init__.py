"""The same methods across machines: sites and a server on Flower (`pip install 'fedhead[flower]'`)."""
