"""Encoders with adapters under a head, and where their weights come from."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.heads import LinearHead
from holdfast.models.adapters import ADAPTERS, adapt
from holdfast.models.classifier import Classifier, Output
from holdfast.models.sources import MODELS, load_encoder
from holdfast.settings import Settings

__all__ = ["MODELS", "Classifier", "Output", "build_classifier"]


def build_classifier(
    name: str, settings: Settings | None = None, *, seed: int = 0, labels: Sequence[str] = ()
) -> Classifier:
    """A classifier on a named encoder; `labels` are those of the whole stream, for a preallocated head."""
    settings = settings or Settings()
    encoder, tokenizer = load_encoder(name, pooler=settings.vector == "pooler")
    adapt(encoder, ADAPTERS[settings.adapter], seed=seed)
    head = LinearHead(encoder.config.hidden_size, seed=seed, visible=settings.logits)
    if settings.head == "preallocated":
        head.add(labels)
    return Classifier(encoder, tokenizer, head, vector=settings.vector, max_length=settings.max_length)
