"""Deployments on Flower: a server and sites on several machines (`pip install 'fedhead[flower]'`)."""
