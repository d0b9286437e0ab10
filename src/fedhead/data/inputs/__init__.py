"""Model inputs: arrays, tables, texts and targets."""
