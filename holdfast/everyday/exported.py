"""Run an artefact that was exported for torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from holdfast.data.tasks import check_texts
from holdfast.errors import HoldfastError
from holdfast.everyday.scoring import Lift, scoring_of
from holdfast.heads import LinearHead
from holdfast.learning.directory import encoder_fingerprint
from holdfast.learning.sections import Fingerprint
from holdfast.maths import params as P
from holdfast.models import Network, Reading
from holdfast.models.adapters import ADAPTERS, adapt
from holdfast.models.network import SentenceVector
from holdfast.models.sources import load_encoder
from holdfast.runtime.answers import PLAIN, Answer, Asked
from holdfast.runtime.artefact import Artefact, damaged
from holdfast.runtime.decisions import AskedLimits, decided


class TorchClassifier:
    """A classifier from a folder that `holdfast export` has written without --onnx."""

    def __init__(self, directory: str | Path, *, model: str | None = None) -> None:
        """Load an artefact; `model` says where its encoder is now, if that is a folder or has moved."""
        self.artefact = artefact = Artefact(Path(directory))
        if artefact.runs_without_torch:
            raise HoldfastError(f"{directory} holds ONNX graphs; load it with holdfast.runtime.Classifier")
        named = model or artefact.encoder.name
        if named is None:
            raise HoldfastError(
                f"the encoder of {directory} is a folder; name where it is, with --model or model=..., "
                "or export with --onnx, which includes it"
            )
        self.directory = Path(directory)
        try:
            self._load(artefact, named, online=model is not None)
        except (SafetensorError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise damaged(self.directory, " ".join(str(error).split())[:300]) from error

    def _load(self, artefact: Artefact, named: str, *, online: bool) -> None:
        note = artefact.encoder
        if note.vector not in get_args(SentenceVector) or note.adapter not in (None, *ADAPTERS):
            raise damaged(self.directory, "its encoder is read in an unknown way")
        encoder, tokenizer = load_encoder(named, pooler=note.vector == "pooler", online=online)
        if not 1 <= note.layers <= encoder.config.num_hidden_layers:
            raise damaged(self.directory, f"it reads {note.layers} layers")
        encoder.requires_grad_(False)
        if note.adapter is not None:
            adapt(encoder, ADAPTERS[note.adapter], seed=0, top=note.adapt_layers)
        self.model = Network(
            encoder,
            tokenizer,
            LinearHead(1),
            vector=note.vector,  # type: ignore[arg-type]
            reading=Reading(note.layers, note.normalise),
            max_length=note.max_length,
        ).eval()
        expected = Fingerprint(note.weights, note.tokenizer, note.config)
        if different := encoder_fingerprint(self.model).differences(expected):
            raise HoldfastError(
                f"{self.directory} was made with another encoder than {named!r}: its "
                f"{' and '.join(different)} differ; name the right one with --model"
            )
        if note.adapter is not None:
            self._load_weights(artefact)
        self._load_head(artefact)

    def _load_weights(self, artefact: Artefact) -> None:
        found = load(artefact.read(artefact.named("weights")))
        own = {name: value for name, value in P.trainable(self.model).items() if name in found}
        every = {name for name in P.trainable(self.model) if name.startswith("encoder.")}
        if every != found.keys() or any(own[name].shape != found[name].shape for name in own):
            raise damaged(self.directory, "its weights do not belong to its encoder")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(found[name])

    def _load_head(self, artefact: Artefact) -> None:
        found = load(artefact.read(artefact.named("head")))
        parts: dict[str, dict[str, Tensor]] = {"scoring": {}, "lift": {}}
        for name, value in found.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.scoring = scoring_of(parts["scoring"])
        self.lift = Lift(parts["lift"]) if parts["lift"] else None
        self._scores(torch.zeros(1, self.model.encoder.config.hidden_size * self.model.reading.layers))

    @torch.no_grad()
    def _scores(self, features: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.scoring(features, self.lift(features) if self.lift else None)
        if found[0].shape != (len(features), len(self.labels)):
            raise ValueError("the head does not give one probability for each label")
        return found

    @property
    def labels(self) -> list[str]:
        """Labels that can be predicted."""
        return list(self.artefact.manifest.labels)

    @property
    def classes_(self) -> list[str]:
        """The same, under the name that a learner has for them."""
        return self.labels

    @property
    def generation(self) -> int:
        """The generation of the learner that was exported."""
        return self.artefact.manifest.generation

    def answers(self, texts: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
        """Return predictions, as the learner gives them."""
        limits = AskedLimits(asked, self.artefact.reject, self.artefact.sets)
        check_texts(texts)
        if not len(texts):
            return []
        probabilities, *distances = (part.numpy() for part in self._scores(self.model.embed(texts)))
        return decided(texts, asked, self.labels, probabilities, next(iter(distances), None), limits)
