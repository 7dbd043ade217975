"""Protect: the proximal step after the step of any optimiser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.protection import Bowl, equal, steps
from helpers.tiny import importance, llama, same, sequences, weights_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast.errors import HoldfastError
from holdfast.lm import Importance, Protect, protect
from holdfast.lm.artefact import Card
from holdfast.lm.text import collate
from holdfast.lm.weighing import normalised, relatively
from holdfast.steps.proximal import pulled

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2, weight_decay=0.0),
}


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize("mode", ["proximal", "loss"])
def test_without_strength_it_is_the_bare_optimiser(kind: str, mode: Any) -> None:
    plain, guarded = llama(), llama()
    steps(plain, OPTIMIZERS[kind](plain.parameters()), clip=1.0)
    optimizer = OPTIMIZERS[kind](guarded.parameters())
    Protect(guarded, importance(guarded), lam=0.0, mode=mode).attach(guarded, optimizer)
    steps(guarded, optimizer, clip=1.0)
    assert same(weights_of(plain), weights_of(guarded))


@pytest.mark.parametrize(
    ("clip", "lam"),
    [pytest.param(c, l, marks=pytest.mark.slow) for c in (None, 1.0, 30.0) for l in (0.1, 1.0, 50.0)],  # noqa: E741
)
def test_it_comes_to_rest_at_the_optimum_of_loss_and_penalty(clip: float | None, lam: float) -> None:
    a = [1.0, 0.5, 2.0]
    model = Bowl([1.0, 2.0, 0.5], [80.0, -30.0, 50.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.0)
    Protect(model, equal(model, a), lam=lam, normalise="none", cap=None).attach(model, optimizer, clip=clip)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for _ in range(6000):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        decay.step()
    expected = model.h * model.b / (model.h + lam * torch.tensor(a))
    torch.testing.assert_close(model.theta.detach(), expected, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_a_weight_at_its_anchor_without_a_gradient_stays_exactly(kind: str) -> None:
    model = llama()
    start = weights_of(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    Protect(model, importance(model), lam=3.7).attach(model, optimizer)
    for _ in range(3):
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert same(start, weights_of(model))


sizes = st.floats(1e-8, 1e8)


@given(u=st.floats(-1e3, 1e3), anchor=st.floats(-1e3, 1e3), eta=sizes, lam=sizes, a=sizes)
def test_it_always_contracts(u: float, anchor: float, eta: float, lam: float, a: float) -> None:
    there, home = torch.tensor([u]), torch.tensor([anchor])
    strength = (torch.tensor([a]) * lam).clamp(max=1e30) * eta
    after = pulled(there, home, strength)
    assert torch.isfinite(after).all()
    assert abs(float(after - home)) <= abs(float(there - home))


@pytest.mark.parametrize("lam", [1e-8, 1.0, 1e8, 1e30])
@pytest.mark.parametrize("step", ["adam", "lr"])
def test_no_strength_breaks_a_model(lam: float, step: Any) -> None:
    model = llama()
    start = weights_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    Protect(model, importance(model), lam=lam, step=step).attach(model, optimizer)
    steps(model, optimizer, 10, clip=1.0)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    if lam == 1e30:
        important = importance(llama()).values
        for name, weight in model.named_parameters():
            held = important[name] > 0
            assert torch.equal(weight.detach()[held], start[name][held])


def test_the_stronger_the_less_it_moves() -> None:
    moved = []
    for lam in (0.0, 0.01, 1.0, 100.0):
        model = llama()
        found, start = importance(model), weights_of(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
        Protect(model, found, lam=lam).attach(model, optimizer)
        steps(model, optimizer, 8)
        moved.append(
            sum(
                float((found.values[n] * (w.detach() - start[n]) ** 2).sum())
                for n, w in model.named_parameters()
            )
        )
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.01 * moved[0]


def test_a_budget_is_kept() -> None:
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    shield = Protect(model, importance(model), budget=1.0, budget_rate=0.5).attach(model, optimizer)
    steps(model, optimizer, 60)
    assert shield.lam > 0
    assert shield.spent < 3.0, "near the budget of 1"
    unbound = llama()
    free = Protect(unbound, importance(unbound), lam=0.0)
    loose = torch.optim.AdamW(unbound.parameters(), lr=0.01, weight_decay=0.0)
    free.attach(unbound, loose)
    steps(unbound, loose, 60)
    start = weights_of(llama())
    gone = sum(
        float((free.weights[n] * (w.detach() - start[n]) ** 2).sum()) / 2
        for n, w in unbound.named_parameters()
    )
    assert gone > 3 * shield.spent


def test_anchor_and_importance_may_be_kept_in_half_precision() -> None:
    model = llama()
    shield = Protect(model, importance(model), lam=1.0, device="cpu", dtype=torch.bfloat16)
    assert {value.dtype for value in (*shield.anchor.values(), *shield.weights.values())} == {torch.bfloat16}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    shield.attach(model, optimizer)
    steps(model, optimizer, 3)
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_the_loss_form_is_the_penalty_in_the_loss() -> None:
    model, twin = llama(), llama()
    found = importance(model)
    shield = Protect(model, found, lam=2.0, mode="loss", normalise="none", cap=None)
    start = shield.anchor
    with torch.no_grad():
        for one in (model, twin):
            for weight in one.parameters():
                weight.add_(0.01)
    shield.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = collate([sequences(1)[0]], pad=2)
    model.train()(**batch).loss.backward()
    penalty = sum((found.values[n] * (w - start[n]) ** 2).sum() for n, w in twin.named_parameters())
    (twin.train()(**batch).loss + penalty).backward()  # λ/2 = 1
    for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad)
    model.eval()
    shield.detach()


def test_what_makes_no_sense_is_said() -> None:
    model = llama()
    found = importance(model)
    with pytest.raises(HoldfastError, match="holds none of the protected weights"):
        Protect(model, found, lam=1.0).attach(model, torch.optim.SGD(llama().parameters(), lr=0.1))
    for wrong, expected in (
        ({}, "give either lam"),
        ({"lam": 1.0, "budget": 1.0}, "give either lam"),
        ({"lam": -1.0}, "0 or more"),
        ({"lam": float("nan")}, "0 or more"),
        ({"budget": 1.0, "mode": "loss"}, "proximal"),
    ):
        with pytest.raises(HoldfastError, match=expected):
            Protect(model, found, **wrong)
    decaying = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(HoldfastError, match="weight_decay=0"):
        Protect(model, found, lam=1.0).attach(model, decaying)
    with pytest.raises(HoldfastError, match="measured on different weights"):
        Protect(llama(3), found, lam=1.0)


def test_normalisation_by_hand() -> None:
    values = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([0.0, 12.0])}
    assert normalised(values, "global", None)["b"].tolist() == [0.0, 3.0]  # mean 4
    assert normalised(values, "tensor", None)["b"].tolist() == [0.0, 2.0]
    assert normalised(values, "global", 2.0)["b"].tolist() == [0.0, 2.0]
    assert normalised(values, "none", None)["a"].tolist() == [1.0, 3.0]


def test_relative_importance_by_hand() -> None:
    past, ahead = {"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 1.0])}
    # past / mean 2: a = .5, 1.5; ρ = .25, .75; τ = .8 * .5 = .4; λ_up = 1/τ = 2.5
    found = relatively(past, ahead, down=0.1)["w"]
    torch.testing.assert_close(found, torch.tensor([0.1 * 0.25 * 0.5, 2.5 * 0.75 * 1.5]))
    # λ_max/λ = 10 and up = 1: λ_up = 10
    found = relatively(past, ahead, lam=2.0, lam_max=20.0, up=1.0)["w"]
    torch.testing.assert_close(found, torch.tensor([0.25 * 0.5, 10 * 0.75 * 1.5]))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_pieces_are_the_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result does not depend on the chunk size, also for a scalar and a transposed weight."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one = nn.Parameter(torch.tensor(1.0))
            self.columns = nn.Parameter(torch.randn(5, 4).T)
            self.rows = nn.Parameter(torch.randn(3, 50))

    monkeypatch.setattr(protect, "PIECE", size)
    model = Odd()
    start = weights_of(model)
    strengths = {name: torch.rand_like(value) for name, value in start.items()}
    shield = Protect(
        model, Importance(strengths, Card("odd", "none", 0)), lam=3.0, normalise="none", cap=None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    shield.attach(model, optimizer)
    sum((weight**2).sum() for weight in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    for name, weight in model.named_parameters():
        # After one step of Adam, u = θ* - lr sign(g) and r = lr/|g|, up to Adam's ε.
        gradient = 2 * start[name]
        u, r = start[name] - 0.1 * gradient.sign(), 0.1 / gradient.abs()
        expected = pulled(u, start[name], r * 3.0 * strengths[name])
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_a_step_that_was_skipped_for_an_overflow_pulls_nothing() -> None:
    """Fused optimisers run their hooks even on overflow; without a counted step, Adam's step size is 0/0."""
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    Protect(model, importance(model), lam=1.0).attach(model, optimizer)
    start, scaler = weights_of(model), torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (float("inf"), 1.0):
        batch = collate([sequences(4)[i] for i in range(4)], pad=2)
        scaler.scale(model(**batch).loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isinf(factor):
            assert same(start, weights_of(model))
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert not same(start, weights_of(model)), "the next one counts"


def test_scaled_gradients_of_a_fused_optimiser_are_clipped_by_their_true_norm() -> None:
    factors = []
    for scale in (1.0, 1024.0):
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        shield = Protect(model, importance(model), lam=1.0).attach(model, optimizer, clip=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        batch = collate([sequences(4)[i] for i in range(4)], pad=2)
        scaler.scale(model.eval()(**batch).loss).backward()
        scaler.step(optimizer)
        factors.append(shield.clipped)
        shield.detach()
    assert 0 < factors[0] < 1
    assert factors[1] == pytest.approx(factors[0], rel=1e-4)


def test_gradients_are_clipped_as_torch_does() -> None:
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shield = Protect(model, importance(model), lam=1.0).attach(model, optimizer, clip=0.5)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    clipped = [weight.grad.clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert shield.clipped == pytest.approx(0.5 / float(total), rel=1e-6)
    for weight, own in zip(model.parameters(), clipped, strict=True):
        torch.testing.assert_close(own, weight.grad)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 1e-6)
    optimizer.step()
    assert shield.clipped == 1.0, "each step has its own factor"
    shield.detach()


def test_the_trainers_own_clipping_is_taken_over_and_given_back(tmp_path: Path) -> None:
    """The callback clips instead of the Trainer, which does not report its clipping factor."""
    arguments = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, learning_rate=0.01, max_grad_norm=0.1,
        weight_decay=0.0, lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    model, seen = llama(), []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.append((args.max_grad_norm, shield.clipped))

    shield = Protect(model, importance(model), lam=1.0)
    Trainer(
        model, arguments, data_collator=partial(collate, pad=2), train_dataset=sequences(12),
        callbacks=[shield, Watch()],
    ).train()  # fmt: skip
    assert [clip for clip, _ in seen] == [0.0] * 3
    assert all(0 < factor < 1 for _, factor in seen)
    assert arguments.max_grad_norm == 0.1


def test_an_infinite_strength_holds_still_and_can_be_noted() -> None:
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    shield = Protect(model, importance(model), lam=math.inf).attach(model, optimizer)
    steps(model, optimizer, 2)
    start = weights_of(llama())
    for name, weight in model.named_parameters():
        held = shield.weights[name] > 0
        assert torch.equal(weight[held], start[name][held])
    assert json.loads(json.dumps(shield.settings(), allow_nan=False))["lam"] == "inf"
    with pytest.raises(HoldfastError, match="infinite lam"):
        Protect(model, importance(model), lam=math.inf, mode="loss")
