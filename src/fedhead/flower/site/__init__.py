"""A site of a deployment on Flower."""
