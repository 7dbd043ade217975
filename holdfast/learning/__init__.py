"""Learner: teach a model one task after another, keep trials on disk, save and load."""
