"""Trees of named tensors."""
