"""What a taught model is asked: labels and probabilities, in scikit-learn's words; its score is macro-F1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.data.tasks import Split
from holdfast.errors import HoldfastError
from holdfast.heads import ClosedFormHead
from holdfast.maths.metrics import macro_f1
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

    def is_unknown(self, texts: Sequence[str], reject: float = 0.95) -> list[bool]:
        """Whether each text lies further out than that share of the validation sentences did."""
        return self.far_out(self.model.embed(texts), reject)

    def far_out(self, features: Tensor, reject: float) -> list[bool]:
        """The same for sentence vectors. A trained head cannot tell."""
        head = self.model.head
        if not isinstance(head, ClosedFormHead):
            raise HoldfastError("a trained head has no distance to tell unknown inputs by; begin with slda")
        self._rows()
        found: list[bool] = (head.distances(features) > head.threshold(reject)).tolist()
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
