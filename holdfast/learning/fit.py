"""fit(): train on one task. This is the only training loop of classifiers, whatever the method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from holdfast import distributed
from holdfast.data.batches import Examples
from holdfast.maths import params as P
from holdfast.maths.equations import reachable
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import Params
from holdfast.methods.base import Training
from holdfast.models import Network
from holdfast.settings import Settings
from holdfast.steps.squares import add_up_squares

WINDOW = 6  # epochs over which the rise of accuracy is measured


@dataclass
class FitResult:
    """Result of one training run."""

    epochs: int = 0
    best_epoch: int = 0
    valid_loss: float = math.inf
    batches: int = 0
    seconds: float = 0.0
    samples: int = 0
    diverged: bool = False
    rejected: bool = False
    """Whether training stopped because it could not reach its aim."""
    history: list[dict[str, float]] = field(default_factory=list)
    carried: dict[str, Params] = field(default_factory=dict)
    """State that belongs to the final weights."""
    squares: Params = field(default_factory=dict)
    """Mean squared gradients over all steps, if asked for."""


def fit(
    model: Network,
    training: Training,
    train: Examples,
    valid: Examples,
    settings: Settings,
    *,
    seed: int,
    accelerator: Accelerator,
    aim: float | None = None,
    squares: bool = False,
    deployed: Callable[[int], Params | None] = lambda epoch: None,
    on_epoch: Callable[[int, dict[str, float]], None] = lambda epoch, losses: None,
) -> FitResult:
    """Train until the validation task loss of the deployed weights stops falling; restore the best weights.

    There are at most `epochs` epochs, and training stops if a loss is not finite, or if the accuracy on
    validation cannot reach `aim` any more. With `squares`, the mean squared gradients are kept.

    Epoch 0, the weights before
    training, is a candidate. Any strictly lower loss is a new best, but only a gain above
    `min_delta` resets patience. Carried state is restored to the best epoch together with the weights.
    If there is nothing to train or to train on, the model does not change.
    """
    result = FitResult(carried=_copied(training.carried))
    weights = P.trainable(model)
    if not weights or not len(train):
        return result
    if training.begin is not None:
        P.restore(model, training.begin)
    was_training = model.training
    torch.manual_seed(seed)
    shuffle = torch.Generator().manual_seed(seed)
    runner = accelerator.prepare_model(model)
    optimizer = accelerator.prepare_optimizer(training.make_optimizer(weights, settings))
    summed = add_up_squares(optimizer.optimizer, weights) if squares else {}
    steps = math.ceil(len(train) / settings.batch_size)
    warm_up = LambdaLR(optimizer.optimizer, lambda step: min(1.0, (step + 1) / steps))

    candidate = deployed(0)
    best = _Best(candidate or P.snapshot(model), _copied(training.carried), math.inf)
    start, accuracy = _validate(model, candidate, valid, settings.batch_size)
    accuracies = [accuracy]
    # A NaN at the start must not become the best loss: no later loss would compare as lower.
    best.loss = reference = result.valid_loss = start if math.isfinite(start) else math.inf
    patience = settings.patience
    for epoch in range(1, settings.epochs + 1):
        runner.train()
        started = time.perf_counter()
        sums: dict[str, Tensor] = {}
        for batch in train.batches(settings.batch_size, shuffle):
            losses = training.losses(runner, batch.to(accelerator.device))
            optimizer.zero_grad()
            accelerator.backward(sum(losses.values()))
            optimizer.step()
            warm_up.step()
            for name, value in losses.items():
                sums[name] = sums.get(name, torch.zeros(())) + value.detach()
        result.seconds += time.perf_counter() - started
        result.epochs, result.batches, result.samples = epoch, epoch * steps, epoch * len(train)

        candidate = deployed(epoch)
        loss, accuracy = _validate(model, candidate, valid, settings.batch_size)
        accuracies.append(accuracy)
        means = {name: _mean_over_processes(value) / steps for name, value in sums.items()}
        result.history.append(means | {"valid": loss})
        on_epoch(epoch, result.history[-1])
        if not math.isfinite(loss) or not all(math.isfinite(mean) for mean in means.values()):
            result.diverged = True
            break
        if loss < best.loss:
            best = _Best(candidate or P.snapshot(model), _copied(training.carried), loss)
            result.best_epoch, result.valid_loss = epoch, loss
        if reference - loss > settings.min_delta:
            reference, patience = loss, settings.patience
        else:
            patience -= 1
            if patience == 0:
                break
        if aim is not None and reachable(accuracies[1:], settings.epochs, WINDOW) < aim:
            result.rejected = True
            break
    P.restore(model, best.params)
    result.squares = {name: value / result.batches for name, value in summed.items()}
    result.carried = best.carried
    model.train(was_training)
    accelerator.free_memory()  # otherwise it keeps every optimiser it has prepared
    return result


@dataclass
class _Best:
    params: Params
    carried: dict[str, Params]
    loss: float


def _copied(carried: dict[str, Params]) -> dict[str, Params]:
    return {group: {n: value.clone() for n, value in params.items()} for group, params in carried.items()}


@torch.no_grad()
def _validate(model: Network, params: Params | None, valid: Examples, batch_size: int) -> tuple[float, float]:
    """Return task loss and accuracy over a whole split: means over sentences, not of batch means.

    `params` are the weights to use instead of the model's own.
    """
    device = next(model.parameters()).device
    total = torch.zeros(4, dtype=torch.float64, device=device)
    hidden = [row for row in range(len(model.head.labels)) if row not in model.head.visible_rows()]
    model.eval()
    with nullcontext() if params is None else P.using(model, params):
        for batch in valid.batches(2 * batch_size):
            batch = batch.to(device)
            assert batch.objective is not None
            counted = batch.labels != IGNORED
            if counted.any():
                logits = model(batch.without_loss()).logits
                total[:2] += batch.objective.sums(logits, batch.labels)
                logits[:, hidden] = -math.inf
                total[2] += (logits.argmax(1) == batch.labels)[counted].sum()
                total[3] += counted.sum()
    losses, normaliser, right, sentences = distributed.total(total).tolist()
    return float(losses / normaliser) if normaliser else math.inf, right / max(sentences, 1)


def _mean_over_processes(value: Tensor) -> float:
    return float(distributed.total(value.float())) / distributed.processes()
