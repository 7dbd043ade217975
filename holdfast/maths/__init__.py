"""Pure functions of tensors and values: the paper's equations, losses and metrics."""
