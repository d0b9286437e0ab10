"""What every other part uses and which uses none of them: named tensors, random numbers, optimizers, losses, errors."""
