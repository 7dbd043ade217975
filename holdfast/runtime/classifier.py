"""Classifier: answers from an exported artefact, with onnxruntime and tokenizers, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from holdfast.data.tasks import check_texts
from holdfast.errors import HoldfastError
from holdfast.runtime.answers import PLAIN, Answer, Asked
from holdfast.runtime.artefact import Artefact, damaged
from holdfast.runtime.decisions import AskedLimits, Numbers, decided
from holdfast.runtime.sessions import GRAPHS, WORDS, Graph, InUse, Words
from holdfast.settings import MOST_THREADS, usable_cpus

MOST_ROWS, MOST_TOKENS = 64, 8192  # of a batch


class Classifier:
    """A classifier from a folder that `holdfast export --onnx` has written.

    Classifiers of one process share the graphs and the tokenizer that they have in common. Several threads
    may use one at the same time.

    >>> from holdfast import Learner
    >>> from holdfast.everyday.export import export
    >>> from holdfast.runtime import Classifier
    >>> learner = Learner.create("encoder")
    >>> _ = learner.learn(["wake me at six", "play jazz"], ["alarm", "music"])
    >>> _ = learner.save("intents")
    >>> _ = export("intents", "exported", onnx=True)
    >>> classifier = Classifier("exported")
    >>> classifier.labels
    ['alarm', 'music']
    >>> classifier.predict(["play some jazz"])
    ['music']
    """

    def __init__(self, directory: str | Path, *, threads: int | None = None) -> None:
        """Load an artefact; `threads` is by default OMP_NUM_THREADS, else the CPUs this process may use."""
        self.directory = Path(directory)
        threads = min(threads or _threads(), MOST_THREADS)
        artefact = Artefact(self.directory)
        while True:
            try:
                self._load(artefact, threads)
                return
            except HoldfastError as error:
                newer = Artefact(self.directory)
                if newer.manifest.sha256 == artefact.manifest.sha256:
                    if str(error).startswith("the artefact"):
                        raise
                    raise damaged(self.directory, str(error)) from error
                artefact = newer  # exported again while it was read

    def _load(self, artefact: Artefact, threads: int) -> None:
        if not artefact.runs_without_torch:
            raise damaged(self.directory, "it was exported for torch, without --onnx")
        self.own_bytes = artefact.own_bytes
        self._labels = tuple(artefact.manifest.labels)
        self._generation = artefact.manifest.generation
        self._reject, self._sets = artefact.reject, artefact.sets
        self._pad = artefact.encoder.pad
        longest, words = artefact.encoder.max_length, artefact.tokenizer
        self._words: InUse[Words] = WORDS.get(
            (artefact.files[words].sha256, longest), lambda: Words(artefact.read(words), longest)
        )
        self._graphs = [self._graph(artefact, name, threads) for name in artefact.manifest.graphs]

    @staticmethod
    def _graph(artefact: Artefact, name: str, threads: int) -> InUse[Graph]:
        # Only graphs that read sentences gain from keeping memory between batches.
        large = not name.startswith("head")
        key = (artefact.files[name].sha256, threads)
        return GRAPHS.get(key, lambda: Graph(artefact.read(name), threads, arena=large))

    @property
    def labels(self) -> list[str]:
        """Labels that can be predicted."""
        return list(self._labels)

    @property
    def classes_(self) -> list[str]:
        """The same, under the name that a learner has for them."""
        return self.labels

    @property
    def generation(self) -> int:
        """The generation of the learner that was exported."""
        return self._generation

    def answers(self, texts: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
        """Return predictions, as the learner gives them."""
        limits = AskedLimits(asked, self._reject, self._sets)
        probabilities, distances = self._scored(texts)
        return decided(texts, asked, self._labels, probabilities, distances, limits)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the label of each text."""
        return [self._labels[place] for place in self.predict_proba(texts).argmax(1).tolist()]

    def predict_proba(self, texts: Sequence[str]) -> Numbers:
        """Return the probabilities of `labels`, one row per text."""
        return self._scored(texts)[0]

    def _scored(self, texts: Sequence[str]) -> tuple[Numbers, Numbers | None]:
        """Return the probabilities and, if the head has them, the distances of texts."""
        check_texts(texts)
        probabilities = np.empty((len(texts), len(self._labels)))
        distances = np.empty(len(texts))
        known = True
        ids = self._words.thing.ids(list(texts)) if len(texts) else []
        for places in batches([len(one) for one in ids]):
            values = self._batch([ids[place] for place in places])
            for graph in self._graphs:
                values |= graph.thing.run(values)
            found = values.get("probabilities")
            if found is None or not _plausible(found, (len(places), len(self._labels))):
                raise damaged(self.directory, "its graph does not give one probability for each label")
            probabilities[places] = found
            far = values.get("distances")
            known = known and far is not None and far.shape == (len(places),)
            if known:
                distances[places] = far
        return probabilities, distances if known else None

    def _batch(self, ids: list[list[int]]) -> dict[str, Numbers]:
        """Return token ids as a batch that is padded to its longest text."""
        tokens = np.full((len(ids), max(map(len, ids))), self._pad, dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, own in enumerate(ids):
            tokens[row, : len(own)] = own
            mask[row, : len(own)] = 1
        return {"input_ids": tokens, "attention_mask": mask}


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the places of texts in batches of similar length, so that little is padded."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and end - start < MOST_ROWS:
            if (end + 1 - start) * lengths[order[end]] > MOST_TOKENS:
                break
            end += 1
        yield order[start:end]
        start = end


def _plausible(found: Numbers, shape: tuple[int, int]) -> bool:
    """Return whether these are probabilities: rounded ones may be a little above 1."""
    return found.shape == shape and bool(((found >= 0) & (found <= 1.001)).all())


def _threads() -> int:
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else usable_cpus()
