"""The network: an encoder, with or without adapters, and a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import override

from holdfast.data.batches import Batch, Examples
from holdfast.data.tasks import Split, check_texts
from holdfast.heads import Head
from holdfast.maths.losses import Objective
from holdfast.maths.params import Params, eval_mode
from holdfast.models.adapters import Adapter, layers_of
from holdfast.models.prefix import PrefixCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SentenceVector = Literal["mean", "cls", "pooler"]
TOKENIZING = Lock()  # a call sets the truncation of the tokenizer, which threads share


class Reading(NamedTuple):
    """How a sentence vector is read from an encoder."""

    layers: int = 1
    """The number of last hidden layers that are pooled and concatenated; at most those the encoder has."""
    normalise: bool = False
    """Whether the head sees each layer's vector divided by its length."""


ONE_LAYER = Reading()


class Output(NamedTuple):
    """The model's output for a batch."""

    features: Tensor
    """The sentence vectors, not normalised: the length of a unit vector has no gradient."""
    logits: Tensor
    loss: Tensor | None


class Network(nn.Module):
    """A Hugging Face encoder with one shared head. `forward` gets no task id: it is task-agnostic."""

    reading: Reading = ONE_LAYER
    frozen: Sequence[nn.Module] = ()
    """The lower layers without adapters, if only the top layers have some. They and the embeddings stay in
    eval mode."""
    prefix: PrefixCache | None = None

    def __init__(
        self,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        head: Head,
        *,
        vector: SentenceVector = "mean",
        reading: Reading = ONE_LAYER,
        dropout: float = 0.1,
        max_length: int = 128,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.head: Head = head
        self.tokenizer = tokenizer
        self.vector = vector
        self.reading = reading
        self.max_length = max_length

    @override
    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off; below the first adapted layer it stays off."""
        super().train(mode)
        if self.frozen and mode:
            self.encoder.eval()
            for layer in layers_of(self.encoder)[len(self.frozen) :]:
                layer.train()
        return self

    @override
    def forward(self, batch: Batch) -> Output:
        """Return features, raw logits and, if the batch has an objective, the task loss."""
        features = self.features(batch)
        logits = self.head(self.dropout(self.read(features)))
        loss = batch.objective(logits, batch.labels) if batch.objective is not None else None
        return Output(features, logits, loss)

    def features(self, batch: Batch) -> Tensor:
        """Return the sentence vectors, computed in groups of similar length to save padding."""
        groups = batch.by_length()
        if len(groups) == 1:
            return self.vectors(batch)
        found = torch.cat([self.vectors(batch.rows(rows)) for rows in groups])
        return found[torch.cat(groups).argsort()]

    def vectors(self, batch: Batch) -> Tensor:
        """Return the sentence vectors: mean of the tokens, first token, or the encoder's pooler.

        With several layers, those of each layer are concatenated, the last layer at the end.
        """
        more = {"output_hidden_states": True} if self.reading.layers > 1 else {}
        with nullcontext() if self.prefix is None else self.prefix.reading(batch):
            out = self.encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **more)
        if self.vector == "pooler":
            pooled: Tensor = out.pooler_output
            return pooled
        layers: list[Tensor] = [out.last_hidden_state]
        if more:  # of some encoders the last hidden state is normalised, the others are not
            layers = [*out.hidden_states[-self.reading.layers : -1], *layers]
        if self.vector == "cls":
            return torch.cat([tokens[:, 0] for tokens in layers], 1)
        mask = batch.attention_mask.unsqueeze(-1).to(layers[0].dtype)
        return torch.cat([(tokens * mask).sum(1) / mask.sum(1) for tokens in layers], 1)

    def read(self, vectors: Tensor) -> Tensor:
        """Return sentence vectors as the head sees them: normalised per layer, or as they are."""
        if not self.reading.normalise:
            return vectors
        return torch.cat([normalize(one, dim=1) for one in vectors.chunk(self.reading.layers, dim=1)], 1)

    def encode(self, split: Split, objective: Objective | None = None) -> Examples:
        """Return a split as token ids and head rows; a label without a row becomes -1 (never correct)."""
        row = {label: i for i, label in enumerate(self.head.labels)}
        return Examples(
            tokens=self.tokenize(split.texts),
            labels=[row.get(label, -1) for label in split.labels],
            pad=int(self.tokenizer.pad_token_id or 0),
            objective=objective,
        )

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, truncated, not padded."""
        check_texts(texts)
        if not len(texts):
            return []
        with TOKENIZING:
            ids: list[list[int]] = self.tokenizer(
                list(texts), truncation=True, max_length=self.max_length, return_attention_mask=False
            )["input_ids"]
        return ids

    def cut(self, texts: Sequence[str]) -> int:
        """Return how many texts are truncated."""
        # A token takes at least one byte, and two are special: shorter texts always fit.
        long = [text for text in texts if len(text.encode()) > self.max_length - 2]
        if not long:
            return 0
        with TOKENIZING:
            found = self.tokenizer(long, return_attention_mask=False, verbose=False)["input_ids"]
        return sum(len(ids) > self.max_length for ids in found)

    def answers(self, output: Output) -> Tensor:
        """Return the outputs whose sensitivity to the weights is measured by MAS."""
        return self.head.answers(output.features, output.logits)

    # ---- frozen lower layers, computed once per sentence of a task ----------------------------------------

    def remember(self, texts: Sequence[str]) -> None:
        """Keep the states of these sentences after the frozen layers, until `unremember`.

        Without frozen layers, or if the sentence vector also reads states below the last of them, nothing is
        kept.
        """
        self.unremember()
        adapted = self.encoder.config.num_hidden_layers - len(self.frozen)
        if self.frozen and self.reading.layers <= adapted + 1:
            width, size = self.encoder.config.hidden_size, self.encoder.dtype.itemsize
            self.prefix = PrefixCache(self.frozen, self.tokenize(texts), width, size)
            self.prefix.attach()

    def unremember(self) -> None:
        """Drop what `remember` keeps."""
        if self.prefix is not None:
            self.prefix.detach()
            self.prefix = None

    # ---- adapters, off under a computed head until the encoder is trained ---------------------------------

    @property
    def adapted(self) -> bool:
        """Whether the adapters are on. Without them the encoder is the original, at its full speed."""
        return any(adapter.acting for adapter in self._adapters())

    @adapted.setter
    def adapted(self, acting: bool) -> None:
        for adapter in self._adapters():
            adapter.acting = acting

    @property
    def adaptable(self) -> bool:
        """Whether the encoder has adapters to train."""
        return any(True for _ in self._adapters())

    @contextmanager
    def adapting(self) -> Iterator[None]:
        """Run the block with the adapters on."""
        own = self.adapted
        self.adapted = True
        try:
            yield
        finally:
            self.adapted = own

    @contextmanager
    def probed(self, labels: Sequence[str]) -> Iterator[None]:
        """Run the block with the head that training uses for these labels. The adapters stay on."""
        own, probe = self.head, self.head.probe(labels)
        self.adapted = True
        self.head = probe.to(next(self.encoder.parameters()))  # same device and precision
        try:
            yield
        finally:
            self.head = own

    def memory(self) -> Params:
        """Return the head's statistics and whether the adapters are on; nothing for a trained head."""
        statistics = self.head.statistics()
        return {**statistics, "adapted": torch.tensor(self.adapted)} if statistics else {}

    def load_memory(self, memory: Params) -> None:
        """Restore the result of `memory`."""
        if memory:
            self.head.load_statistics({name: one for name, one in memory.items() if name != "adapted"})
            self.adapted = bool(memory["adapted"])

    def forget(self, label: str) -> list[str]:
        """Drop a label; return what still carries traces of it."""
        traces = [self.head.forget(label)]
        if self.adapted and not self.head.trained:
            traces.append("the encoder, which was trained while the label was known")
        return list(filter(None, traces))

    def _adapters(self) -> Iterator[Adapter]:
        return (module for module in self.encoder.modules() if isinstance(module, Adapter))

    # ---- in eval mode, for many sentences -----------------------------------------------------------------

    def logits(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """Return the raw logits, in the order of the texts."""
        check_texts(texts)
        result = torch.empty(len(texts), len(self.head.labels))
        for indices, features in self._embedded(texts, batch_size):
            result[indices] = self.head(features).float().cpu()
        return result

    def embed(
        self,
        texts: Sequence[str],
        batch_size: int = 64,
        on_batch: Callable[[int, int], None] = lambda done, total: None,
    ) -> Tensor:
        """Return the sentence vectors as the head sees them, in the order of the texts."""
        check_texts(texts)
        result = torch.empty(len(texts), self.encoder.config.hidden_size * self.reading.layers)
        done = 0
        for indices, features in self._embedded(texts, batch_size):
            result[indices] = features.float().cpu()
            done += len(indices)
            on_batch(done, len(texts))
        return result

    def _embedded(self, texts: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], Tensor]]:
        """Yield batches of similar length: the indices of the texts, and their vectors."""
        device = next(self.encoder.parameters()).device
        examples = Examples(self.tokenize(texts), [0] * len(texts), int(self.tokenizer.pad_token_id or 0))
        with torch.no_grad(), eval_mode(self):
            for indices in examples.order(batch_size):
                yield indices, self.read(self.features(examples.collate(indices).to(device)))
