"""Protecting a language model while it learns something new: importance, fine-tuning, evaluation."""

from holdfast.lm.artefact import Importance
from holdfast.lm.protect import Protect
from holdfast.models.sources import load_lm

__all__ = ["Importance", "Protect", "load_lm"]
