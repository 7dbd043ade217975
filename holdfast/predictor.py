"""What a taught model is asked: labels and probabilities, in scikit-learn's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.data.tasks import Split
from holdfast.errors import HoldfastError
from holdfast.metrics import macro_f1
from holdfast.models.classifier import Classifier


class Predictor:
    """Answers for texts. Nobody says which task they are from."""

    model: Classifier

    @property
    def classes_(self) -> list[str]:
        """The labels a prediction may have."""
        return [self.model.head.labels[row] for row in self.model.head.visible_rows()]

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The label of each text: argmax of raw logits."""
        classes, rows = self.classes_, self._rows()
        return [classes[i] for i in self.model.logits(texts)[:, rows].argmax(1).tolist()]

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """The probability of each of `classes_`, a row per text."""
        found: np.ndarray = self.probabilities(self.model.embed(texts)).numpy()
        return found

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """The same for sentence vectors."""
        head = self.model.head
        device = next(self.model.encoder.parameters()).device
        logits = head(features.to(device))[:, self._rows()].double().cpu()
        found: Tensor = (logits / head.temperature).softmax(1)
        return found

    def score(self, texts: Split | Sequence[str], labels: Sequence[str] | None = None) -> float:
        """Macro-F1 on a split, or on texts and their labels."""
        split = (
            texts
            if isinstance(texts, Split)
            else Split(tuple(texts), tuple(() if labels is None else labels))
        )
        return macro_f1(split.labels, self.predict(split.texts))

    def _rows(self) -> list[int]:
        """The head's rows of `classes_`."""
        rows = self.model.head.visible_rows()
        if not rows:
            raise HoldfastError("this learner has no labels yet; teach it some")
        return rows
