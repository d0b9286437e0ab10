"""Server of a deployment on Flower."""
