"""Per-sample importance: how much a model's answers depend on each weight (equation 1 of the paper).

`mas` (Memory Aware Synapses, Aljundi et al. 2018) and `fisher` (empirical Fisher, Kirkpatrick et al. 2017)
are means over *samples*: the absolute value or the square is taken of each sample's own gradient, summed over
its tokens first. For linear and norm layers one backward pass serves all samples of a batch, because a
sample's gradient is a product of the layer's inputs and its output gradients; other weights take one pass per
sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast import distributed
from holdfast.data.batches import Batch, Examples
from holdfast.fields import check_word
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import Params, eval_mode, trainable
from holdfast.models import Network, Output

Convention = Literal["per-sample", "lacl"]
Norm = Literal["squared", "l2"]
FisherLabels = Literal["true", "sample", "expected"]
Score = Callable[[Output, Batch], Tensor]  # one number per sample, to be back-propagated
LACL_CHUNK = 20


def mas(
    model: Network,
    data: Examples,
    *,
    convention: Convention = "per-sample",
    norm: Norm = "squared",
    batch_size: int = 32,
) -> Params:
    """Return α_j = (1/n) Σ_i |∂‖z(x_i)‖² / ∂θ_j|, z the logits of visible labels; labels are not used.

    Under a head that is not trained, z are the features themselves. `norm="l2"` is the norm itself, as the
    paper prints it.

    `convention="lacl"` is the estimator of the paper's released code: the absolute value of sums over chunks
    of 20 in stored order, times 20/n, in training mode. It is for comparison only: in chunks opposite signs
    cancel, and dropout adds noise.
    """

    def size(output: Output, batch: Batch) -> Tensor:
        answers: Tensor = model.answers(output)
        return answers.square().sum(1) if norm == "squared" else torch.linalg.vector_norm(answers, dim=1)

    check_word(convention, Convention, "convention")
    check_word(norm, Norm, "norm")
    if convention == "lacl":
        return _lacl(model, data, size)
    return _mean_over_samples(model, data, size, torch.abs, batch_size)


def fisher(
    model: Network, data: Examples, *, labels: FisherLabels = "true", batch_size: int = 32, seed: int = 0
) -> Params:
    """Return F_j = (1/n) Σ_i E_y (∂ log p(y|x_i) / ∂θ_j)² over visible labels (Kirkpatrick et al. 2017).

    y is the true label (the empirical Fisher), one drawn from the model's own p, or all of them weighted by p
    (the expectation itself, at one pass per label).
    """
    check_word(labels, FisherLabels, "labels")
    rows = model.head.visible_rows()
    column = torch.full((len(model.head.labels),), -1)
    column[rows] = torch.arange(len(rows))
    draw = torch.Generator().manual_seed(seed)

    def true(log_p: Tensor, batch: Batch) -> Tensor:
        return log_p.gather(1, column.to(log_p.device)[batch.labels, None])[:, 0]

    def sample(log_p: Tensor, batch: Batch) -> Tensor:
        drawn = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=draw)
        return log_p.gather(1, drawn.to(log_p.device))[:, 0]

    def weighted(label: int, log_p: Tensor, batch: Batch) -> Tensor:
        return log_p[:, label] * log_p[:, label].detach().div(2).exp()  # √p inside the square is p outside

    picks = {"true": [true], "sample": [sample]}.get(labels) or [
        partial(weighted, i) for i in range(len(rows))
    ]

    def score(pick: Callable[[Tensor, Batch], Tensor]) -> Score:
        return lambda output, batch: pick(output.logits[:, rows].log_softmax(1), batch)

    parts = [_mean_over_samples(model, data, score(pick), torch.square, batch_size) for pick in picks]
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def perturbation(
    model: Network,
    data: Examples,
    *,
    shift: float,
    floor: float,
    limit: int = 2000,
    batch_size: int = 32,
    seed: int = 0,
) -> Params:
    """Return RP2F's importance: |∂loss/∂W| with all entries of W shifted, one matrix at a time, plus a floor.

    Batch means are added up over at most about `limit` samples, drawn by `seed`, and divided by their
    number (Sun et al. 2024, their code). Biases and norms get 1, so that they follow a plain average over
    tasks. On the head a shift moves all logits alike and does not change the loss.
    """
    weights = trainable(model)
    found = {name: torch.ones_like(weight) for name, weight in weights.items()}
    part = data.drawn((limit // batch_size + 1) * batch_size, seed)
    with eval_mode(model):
        for name, weight in weights.items():
            if weight.dim() < 2:
                continue
            total = torch.zeros_like(weight, dtype=torch.float64)
            with _shifted(weight, shift):
                for batch in part.batches(batch_size):
                    (gradient,) = _gradients(model, batch, [weight])
                    total += 0.0 if gradient is None else gradient.abs()
            found[name] = (total / len(part) + floor).to(weight.dtype)
    return found


@contextmanager
def _shifted(weight: nn.Parameter, shift: float) -> Iterator[None]:
    """Run a block with every entry shifted by the same amount, then restore the weight."""
    own = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.add_(shift)
        yield
    finally:
        with torch.no_grad():
            weight.copy_(own)


def mean_gradients(model: Network, data: Examples, *, batch_size: int = 32) -> Params:
    """Return the gradient of the task loss at the current weights, by one pass in eval mode."""
    weights = trainable(model)
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    with eval_mode(model):
        for number, batch in enumerate(data.batches(batch_size)):
            share = min(batch_size, len(data) - number * batch_size) / len(data)
            found = _gradients(model, batch, list(weights.values()))
            for name, gradient in zip(weights, found, strict=True):
                if gradient is not None:
                    sums[name] += share * gradient
    return {name: sums[name].to(weight.dtype) for name, weight in weights.items()}


def _gradients(model: Network, batch: Batch, weights: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return the gradient of the batch's task loss, the same on all processes."""
    loss = model(batch.to(weights[0].device)).loss
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [None if g is None else distributed.total(g) / distributed.processes() for g in found]


def _mean_over_samples(
    model: Network, data: Examples, score: Score, magnitude: Callable[[Tensor], Tensor], batch_size: int
) -> Params:
    """Return the mean over all processes' samples of a magnitude of each sample's gradient."""
    weights = trainable(model)
    sums = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
    owners = _owners(model, weights)
    others = {name: w for name, w in weights.items() if name not in owners}
    with eval_mode(model), _recorded(owners) as record:
        for batch in data.batches(batch_size):
            if (batch.labels == IGNORED).all():
                continue
            batch = batch.without_loss().to(next(iter(weights.values())).device)
            # One forward pass per group of similar length: the model would split the batch in the same way.
            for group in map(batch.rows, batch.by_length()):
                record.clear()
                scores = score(model(group), group)
                for name, gradients in _per_sample(scores.sum(), record, owners):
                    sums[name] += magnitude(gradients).sum(0)
            for i in range(len(batch)) if others else ():
                sample = batch.rows(torch.tensor([i], device=batch.labels.device))
                found = torch.autograd.grad(
                    score(model(sample), sample).sum(), list(others.values()), allow_unused=True
                )
                for name, gradient in zip(others, found, strict=True):
                    if gradient is not None:
                        sums[name] += magnitude(gradient)
    return {name: (distributed.total(sums[name]) / len(data)).to(w.dtype) for name, w in weights.items()}


def _lacl(model: Network, data: Examples, score: Score) -> Params:
    weights = trainable(model)
    sums = {name: torch.zeros_like(w) for name, w in weights.items()}
    was_training = model.training
    model.train()
    for start in range(0, len(data), LACL_CHUNK):
        batch = data.collate(range(start, min(start + LACL_CHUNK, len(data))))
        batch = batch.without_loss().to(next(iter(weights.values())).device)
        found = torch.autograd.grad(
            score(model(batch), batch).sum(), list(weights.values()), allow_unused=True
        )
        for name, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                sums[name] += gradient.abs() * LACL_CHUNK / len(data)
    model.train(was_training)
    return sums


# ---- per-sample gradients from one backward pass -----------------------------------------------------

Owner = tuple[nn.Module, str]  # a parameter's module and its name in it
Calls = dict[nn.Module, list[tuple[Tensor, Tensor]]]  # each call of a layer: its input and its output


def _owners(model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, Owner]:
    """Return the weights whose per-sample gradient has a closed form, each with its layer."""
    found: dict[str, Owner] = {}
    holders: dict[int, int] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            holders[id(weight)] = holders.get(id(weight), 0) + 1
    for prefix, module in model.named_modules():
        if type(module) in (nn.Linear, nn.LayerNorm):
            for name, weight in module.named_parameters(recurse=False):
                full = f"{prefix}.{name}" if prefix else name
                # A weight shared by two modules has one gradient but two owners: it takes the slow path.
                if full in weights and holders[id(weight)] == 1:
                    found[full] = (module, name)
    return found


@contextmanager
def _recorded(owners: dict[str, Owner]) -> Iterator[Calls]:
    """Record the inputs and outputs of every owning layer."""
    record: Calls = {}

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        record.setdefault(module, []).append((inputs[0].detach(), output))

    handles = [module.register_forward_hook(watch) for module in {owner for owner, _ in owners.values()}]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _per_sample(total: Tensor, record: Calls, owners: dict[str, Owner]) -> Iterator[tuple[str, Tensor]]:
    """Yield each owned weight's gradient per sample, summed over all calls and tokens of the sample."""
    calls = [(module, x, output) for module, seen in record.items() for x, output in seen]
    # Differentiate by the layers' outputs only: the batch's own weight gradients are never computed.
    gradients = torch.autograd.grad(total, [output for *_, output in calls], allow_unused=True)
    answered: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    for (module, x, _), g in zip(calls, gradients, strict=True):
        if g is not None:
            answered.setdefault(module, []).append((x, g))
    for name, (module, kind) in owners.items():
        if module in answered:
            yield name, torch.stack([_closed_form(module, kind, *call) for call in answered[module]]).sum(0)


def _closed_form(module: nn.Module, kind: str, x: Tensor, g: Tensor) -> Tensor:
    """Return Σ_t g_nt x_nt^T for a Linear, Σ_t g_nt x̂_nt for a LayerNorm, Σ_t g_nt for either's bias."""
    x, g = x.reshape(len(x), -1, x.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
    if kind == "bias":
        return g.sum(1)
    if isinstance(module, nn.Linear):
        return g.transpose(1, 2) @ x
    assert isinstance(module, nn.LayerNorm)
    return (g * nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)).sum(1)
