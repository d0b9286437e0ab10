"""Mathematics of training: batches, losses, optimizers, schedules, random numbers."""
