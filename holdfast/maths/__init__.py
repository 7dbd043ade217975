"""Pure functions of tensors and values: the paper, losses, metrics."""
