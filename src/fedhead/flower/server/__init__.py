"""The server of a deployment on Flower."""
