"""The clients' half of a round: data, batches, evaluation."""
