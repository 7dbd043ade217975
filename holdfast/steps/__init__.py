"""Changes to the training step: the proximal pull, projection, UPGD."""
