"""Client side of a round: data, batches, evaluation."""
