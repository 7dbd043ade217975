"""Steps around an optimiser's step: the proximal pull, projection, UPGD."""
