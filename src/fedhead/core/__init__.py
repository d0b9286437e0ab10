"""Building blocks that every other package uses: named tensors, random numbers, optimizers, losses, errors."""
