"""Classifiers: encoders, adapters and heads, and the sources of encoder weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from holdfast.errors import HoldfastError
from holdfast.heads import Head, LinearHead
from holdfast.models.adapters import ADAPTERS, FAMILIES, adapt, layers_of
from holdfast.models.network import Network, Output, Reading
from holdfast.models.sources import MODELS, load_encoder
from holdfast.settings import Settings

__all__ = ["MODELS", "Network", "Output", "Reading", "build_classifier"]


Adapters = Literal["always", "never", "where possible"]


class Wishes(Protocol):
    """What a method requires of its model."""

    @property
    def adapters(self) -> Adapters:
        """Whether to add adapters, so that the encoder can be trained."""

    @property
    def reading(self) -> Reading:
        """How sentence vectors are read."""

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Return the head of the method."""


class Usual:
    """The default: a trained encoder with a trained linear head."""

    adapters: Adapters = "always"
    reading = Reading()

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Return a linear head."""
        return LinearHead(width, seed=seed, visible=settings.logits)


def build_classifier(
    name: str,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    labels: Sequence[str] = (),
    method: Wishes | None = None,
    online: bool = True,
) -> Network:
    """Build a classifier on a named encoder, as `method` requires it; the default is `Usual`.

    `labels` are those of the whole stream, for a preallocated head. Unless `online`, nothing is downloaded.

    >>> model = build_classifier("encoder")
    >>> model.embed(["wake me at six"]).shape
    torch.Size([1, 32])
    """
    settings, method = settings or Settings(), method or Usual()
    encoder, tokenizer = load_encoder(name, pooler=settings.vector == "pooler", online=online)
    room = getattr(encoder.config, "max_position_embeddings", None)
    if room and settings.max_length > room:
        raise HoldfastError(f"max_length {settings.max_length} is too high: {name} reads only {room} tokens")
    possible = encoder.config.model_type in FAMILIES
    if method.adapters == "always" or (method.adapters == "where possible" and possible):
        adapt(encoder, ADAPTERS[settings.adapter], seed=seed, top=settings.adapt_layers)
    else:
        encoder.requires_grad_(False)
    reading = method.reading
    if settings.vector == "pooler" and reading.layers > 1:
        raise HoldfastError("vector=pooler reads one layer only; use layers=1, or vector=mean")
    reading = reading._replace(layers=min(reading.layers, encoder.config.num_hidden_layers))
    head = method.make_head(encoder.config.hidden_size * reading.layers, settings, seed)
    head.blocks = reading.layers
    if settings.head == "preallocated":
        head.add(labels)
    model = Network(
        encoder, tokenizer, head, vector=settings.vector, reading=reading, max_length=settings.max_length
    )
    if model.adaptable and settings.adapt_layers:
        model.frozen = layers_of(encoder)[: -settings.adapt_layers]
    model.adapted = head.trained  # under a computed head, adapters stay off until the encoder is trained
    return model.eval()
