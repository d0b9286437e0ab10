"""Site of a deployment on Flower."""
