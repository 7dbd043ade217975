"""Continual fine-tuning of language models: parameter importance, protection, evaluation."""

from holdfast.lm.artefact import Card, Importance, measure
from holdfast.lm.protect import Protect
from holdfast.models.sources import load_lm

__all__ = ["Card", "Importance", "Protect", "load_lm", "measure"]
