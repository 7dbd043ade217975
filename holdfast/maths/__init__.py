"""The paper's equations, losses and metrics, and functions for weights by name."""
