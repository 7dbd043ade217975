"""The training loop: early stopping, best weights, warm-up, determinism."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from helpers.learners import make_learner
from helpers.toys import class_stream, small
from helpers.weights import assert_same_bits

import holdfast.learning.fit as fit_module
from holdfast.data.batches import Examples
from holdfast.data.objective import objective
from holdfast.learning.fit import FitResult, fit
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Training
from holdfast.models import Network, build_classifier

STEPS = 3  # 24 sentences in batches of 8


class World:
    """A model with the first toy task encoded for it."""

    def __init__(self, path: str) -> None:
        self.task = class_stream().tasks[0]
        self.model: Network = build_classifier(path, small())
        self.model.head.add(self.task.labels)
        self.model.head.teach(self.task.labels)
        self.train, self.valid = self.encode("train"), self.encode("valid")
        self.start = P.snapshot(self.model)

    def encode(self, part: Any) -> Examples:
        labels = self.model.head.labels
        loss = objective("class-incremental", self.task, part, rows=labels, seen=labels)
        return self.model.encode(getattr(self.task, part), loss)

    def fit(
        self,
        training: Training,
        *,
        seed: int = 0,
        aim: float | None = None,
        deployed: Any = None,
        on_epoch: Any = None,
        **changes: Any,
    ):
        extra = {"on_epoch": on_epoch} if on_epoch else {}
        return fit(
            self.model,
            training,
            self.train,
            self.valid,
            small(**changes),
            seed=seed,
            accelerator=Accelerator(),
            aim=aim,
            deployed=deployed or (lambda epoch: None),
            **extra,
        )


@pytest.fixture
def world(tiny_bert: str) -> World:
    return World(tiny_bert)


def counting(lr: float = 1e-3, **rest: Any) -> Training:
    """Return a training that counts its steps in its carried state."""
    steps = torch.zeros(())

    def forward(model, batch):
        steps.add_(1)
        return Training.forward(model, batch)

    return Training(lr, forward=forward, carried={"count": {"steps": steps}}, **rest)


def steps_of(carried: dict[str, P.Params]) -> int:
    return int(carried["count"]["steps"])


def script(
    monkeypatch: pytest.MonkeyPatch, losses: list[float], accuracies: list[float] | None = None
) -> list[P.Params]:
    """Set the validation losses and accuracies of epochs 0, 1, ...; return the list of weights evaluated."""
    judged: list[P.Params] = []

    def scripted(
        model: Network, params: P.Params | None, valid: Examples, batch_size: int
    ) -> tuple[float, float]:
        own = P.snapshot(model) if params is None else params
        judged.append({name: value.clone() for name, value in own.items()})
        return losses[len(judged) - 1], accuracies[len(judged) - 1] if accuracies else 0.0

    monkeypatch.setattr(fit_module, "_validate", scripted)
    return judged


def test_best_weights_and_state_come_back_together(world, monkeypatch):
    judged = script(monkeypatch, [1.0, 0.9, 0.5, 0.8, 0.7])
    training = counting()
    result = world.fit(training, epochs=4, patience=9)
    assert (result.epochs, result.best_epoch, result.valid_loss) == (4, 2, 0.5)
    assert steps_of(training.carried) == 4 * STEPS
    assert steps_of(result.carried) == 2 * STEPS, "the state is that of the best epoch"
    assert_same_bits(P.snapshot(world.model), judged[2])
    assert not torch.equal(judged[2]["head.linear.bias"], judged[4]["head.linear.bias"])


def test_epoch_zero_is_a_candidate(world, monkeypatch):
    script(monkeypatch, [0.5, 0.6, 0.7, 0.8])
    result = world.fit(counting(), epochs=3, patience=9)
    assert (result.best_epoch, result.valid_loss, steps_of(result.carried)) == (0, 0.5, 0)
    assert_same_bits(P.snapshot(world.model), world.start)


def test_a_ruinous_rate_gives_the_start_back(world):
    result = world.fit(Training(1e3))
    assert result.best_epoch == 0
    assert_same_bits(P.snapshot(world.model), world.start)


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], 2, 2, 0),  # a tie is neither a new best nor an improvement
        (
            [1.0, 0.999, 0.9985, 0.9, 0.9],
            2,
            2,
            2,
        ),  # improvements too small for patience, but the best weights
        ([1.0, 0.999, 0.9975, 0.997, 0.9969], 2, 4, 4),  # small improvements add up since the last reset
        ([1.0, 0.5, 0.6, 0.4, 0.6, 0.6, 0.1], 2, 5, 3),  # an improvement resets patience
        ([1.0, 1.1, 0.9, 1.1, 1.1, 0.1], 2, 4, 2),
        ([1.0, 0.9, 0.8, 0.7], 1, 3, 3),
        ([1.0, 1.1, 0.2], 1, 1, 0),
    ],
)
def test_patience_and_min_delta(world, monkeypatch, losses, patience, epochs, best):
    script(monkeypatch, losses)
    result = world.fit(counting(), epochs=len(losses) - 1, patience=patience, min_delta=0.002)
    assert (result.epochs, result.best_epoch) == (epochs, best)
    assert result.valid_loss == losses[best]


def test_warm_up_over_the_first_epoch_then_constant(world):
    rates: list[float] = []

    def watch(optimizer, weights):
        optimizer.register_step_pre_hook(lambda own, *_: rates.append(own.param_groups[0]["lr"]))

    world.fit(Training(6e-4, around_step=(watch,)), epochs=2, patience=9)
    assert rates == pytest.approx([2e-4, 4e-4, 6e-4, 6e-4, 6e-4, 6e-4], rel=1e-12)


def test_the_recipe_is_adamw_without_decay():
    weights = {"w": torch.nn.Parameter(torch.zeros(2))}
    [group] = Training(0.1).make_optimizer(weights, small()).param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.999), 1e-8, 0.0)


def test_nothing_to_train_is_a_no_op(world):
    world.model.requires_grad_(False)
    before = {name: value.clone() for name, value in world.model.state_dict().items()}
    training = counting()
    result = world.fit(training)
    assert (result.epochs, result.batches, steps_of(training.carried)) == (0, 0, 0)
    assert_same_bits(dict(world.model.state_dict()), before)
    world.model.head.requires_grad_(True)
    world.train = Examples([], [], 0)
    assert world.fit(training).epochs == 0


def test_a_no_op_can_be_written_down():
    assert not math.isnan(FitResult().valid_loss)


def test_divergence_is_flagged_and_the_start_survives(world):
    result = world.fit(counting(terms={"spoilt": lambda batch, output: output.loss * math.nan}), epochs=5)
    assert result.diverged
    assert (result.epochs, result.best_epoch, steps_of(result.carried)) == (1, 0, 0)
    assert_same_bits(P.snapshot(world.model), world.start)


def test_a_start_that_cannot_be_judged_does_not_win(world, monkeypatch):
    judged = script(monkeypatch, [math.nan, 0.7, 0.9])
    result = world.fit(counting(), epochs=2)
    assert (result.diverged, result.best_epoch, result.valid_loss) == (False, 1, 0.7)
    assert_same_bits(P.snapshot(world.model), judged[1])


def test_divergence_keeps_the_best_epoch(world, monkeypatch):
    judged = script(monkeypatch, [1.0, 0.5, math.inf, 0.1])
    result = world.fit(counting(), epochs=3)
    assert result.diverged
    assert (result.epochs, result.best_epoch) == (2, 1)
    assert_same_bits(P.snapshot(world.model), judged[1])


def test_same_seed_same_bits(tiny_bert):
    ends = []
    for seed in (5, 5, 6):
        world = World(tiny_bert)
        torch.manual_seed(len(ends))  # the global generator must not matter
        world.fit(Training(1e-2), seed=seed)
        ends.append(P.snapshot(world.model))
    assert_same_bits(ends[0], ends[1])
    assert not torch.equal(ends[0]["head.linear.weight"], ends[2]["head.linear.weight"])


def test_every_sample_once_per_epoch(world):
    seen: list[list[int]] = []

    def watching(model, batch):
        lengths = batch.attention_mask.sum(1).tolist()
        seen.extend(row[:n] for row, n in zip(batch.input_ids.tolist(), lengths, strict=True))
        return Training.forward(model, batch)

    world.fit(Training(1e-3, forward=watching), epochs=1)
    assert sorted(seen) == sorted(map(list, world.train.tokens))
    assert seen != [list(tokens) for tokens in world.train.tokens], "shuffled"


def test_deployed_weights_are_judged_and_kept(world, monkeypatch):
    """As in a method with fusion, the deployed weights are half of the trained ones."""
    judged = script(monkeypatch, [1.0, 0.9, 0.5, 0.8])
    live: list[P.Params] = []

    def deployed(epoch: int) -> P.Params:
        now = P.snapshot(world.model)
        live.append(now)
        return {name: (world.start[name] + value) / 2 for name, value in now.items()}

    result = world.fit(Training(1e-2), deployed=deployed, epochs=3, patience=9)
    assert result.best_epoch == 2
    expected = {name: (world.start[name] + value) / 2 for name, value in live[2].items()}
    assert_same_bits(judged[2], expected)
    assert_same_bits(P.snapshot(world.model), expected)
    # Training continued from the live weights, not from the deployed ones.
    assert not torch.equal(live[3]["head.linear.weight"], judged[2]["head.linear.weight"])


def test_deployed_weights_do_not_steer_training(tiny_bert):
    """Evaluating other weights does not change the training, bit for bit."""
    ends = []
    for halved in (False, True):
        world, live = World(tiny_bert), []

        def deployed(epoch, world=world, live=live, halved=halved) -> P.Params:
            now = P.snapshot(world.model)
            live.append(now)
            return {name: value / 2 for name, value in now.items()} if halved else now

        world.fit(Training(1e-2), deployed=deployed, epochs=3, patience=9)
        ends.append(live[-1])
    assert_same_bits(*ends)


def test_validation_loss_is_one_mean_and_not_a_mean_of_batches(world):
    # 12 sentences in one batch, in batches of 4, and in batches of 10 and 2
    found = [fit_module._validate(world.model, world.start, world.valid, size) for size in (32, 2, 5)]
    world.model.eval()
    with torch.no_grad():
        batch = world.valid.collate(range(len(world.valid)))
        logits = world.model(batch).logits
        expected = float(torch.nn.functional.cross_entropy(logits, batch.labels))
    assert [loss for loss, _ in found] == pytest.approx([expected] * 3, abs=1e-6)
    right = sum(int(row.argmax()) == int(label) for row, label in zip(logits, batch.labels, strict=True))
    assert [accuracy for _, accuracy in found] == pytest.approx([right / 12] * 3)


@pytest.mark.parametrize(
    ("aim", "epochs", "rejected"), [(0.5, 12, True), (0.39, 20, False), (None, 20, False)]
)
def test_a_training_without_a_chance_stops(world, monkeypatch, aim, epochs, rejected):
    """After 12 of 20 epochs accuracy is .24; rising by .02 an epoch, it can still reach .4."""
    script(monkeypatch, [1.0 - 0.01 * epoch for epoch in range(21)], [0.02 * epoch for epoch in range(21)])
    result = world.fit(Training(1e-3), epochs=20, patience=99, aim=aim)
    assert (result.epochs, result.rejected) == (epochs, rejected)


def test_history_names_every_term(world):
    two = Training(1e-3, terms={"extra": lambda batch, output: torch.tensor(2.0)})
    told: list[tuple[int, dict[str, float]]] = []
    result = world.fit(two, epochs=2, patience=9, on_epoch=lambda epoch, losses: told.append((epoch, losses)))
    assert [epoch for epoch, _ in told] == [1, 2]
    assert all(set(losses) == {"task", "extra", "valid"} for _, losses in told)
    assert told[0][1]["extra"] == 2.0, "the mean over batches, not the sum"
    assert (result.batches, result.samples) == (2 * STEPS, 48)


def test_look_ahead_and_main_phase_see_the_same_batches_and_dropout(tiny_bert, classes, monkeypatch):
    trainings: list[list[tuple[Any, float]]] = []
    original_fit = fit_module.fit

    def counted(model: Network, training: Training, *args: Any, **kwargs: Any):
        trainings.append([])

        def forward(model, batch):
            found = training.forward(model, batch)
            trainings[-1].append((batch.input_ids.tolist(), float(found.loss.detach())))
            return found

        return original_fit(model, replace(training, forward=forward), *args, **kwargs)

    monkeypatch.setattr("holdfast.learning.at_hand.fit", counted)
    learner = make_learner(tiny_bert, METHODS["la"](thr=0.01), classes, small(patience=9))
    learner.learn(classes.tasks[0])
    trainings.clear()
    lesson = learner.learn(classes.tasks[1])
    assert len(trainings) == len(lesson.trials) > 2
    assert lesson.trials[-1].choice["down"] is not None
    gold, main = trainings[0], trainings[-1]
    assert [batch for batch, _ in gold] == [batch for batch, _ in main]
    assert gold[0][1] == main[0][1], "the first step has the same weights and the same dropout"
    assert gold[-1][1] != main[-1][1], "the last one does not"


def test_optimizers_are_let_go(world):
    accelerator = Accelerator()
    for seed in range(3):
        fit(
            world.model,
            Training(3e-4),
            world.train,
            world.valid,
            small(epochs=1),
            seed=seed,
            accelerator=accelerator,
        )
    assert len(accelerator._optimizers) <= 1


def test_mode_is_put_back(world):
    world.model.eval()
    world.fit(Training(1e-3), epochs=1)
    assert not world.model.training
