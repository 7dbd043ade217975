"""Protect: half precision, other optimisers, LoRA, budgets and invalid input."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.protection import Bowl, StopAt, equal, steps, trainer
from helpers.tiny import importance, llama, same, sequences, weights_of
from torch import nn
from transformers.optimization import Adafactor

from holdfast.errors import HoldfastError
from holdfast.lm import Importance, Protect
from holdfast.lm.artefact import PARTIAL, Card, measure
from holdfast.lm.lora import carried, matters_now, on_adapters
from holdfast.lm.rounding import Rounding
from holdfast.lm.shards import plain_name
from holdfast.lm.text import collate

# ---- half precision -----------------------------------------------------------------------------------


class Weights(nn.Module):
    """bfloat16 weights with the value 1."""

    def __init__(self, count: int = 10_000) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(count, dtype=torch.bfloat16))


def drawn_back(strength: float, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distances from the anchor before and after `count` pulls with zero gradients."""
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found = Importance({"theta": torch.ones(len(model.theta))}, Card("ones", "none", 1))
    Protect(model, found, lam=strength).attach(model, optimizer)
    with torch.no_grad():
        model.theta.add_(2**-7)
    before = model.theta.detach().float() - 1
    for _ in range(count):
        model.theta.grad = torch.zeros_like(model.theta)
        optimizer.step()
    return before, model.theta.detach().float() - 1


def test_small_pulls_on_half_precision_add_up() -> None:
    """100 pulls of 1 % leave 0.99^100 = 0.37 of the distance; rounding to nearest would leave all of it."""
    before, after = drawn_back(1 / 99, 100)
    assert float(after.mean() / before.mean()) == pytest.approx(0.99**100, abs=0.03)
    assert ((after >= 0) & (after <= before)).all(), "between the start and the anchor"
    assert torch.equal(after, drawn_back(1 / 99, 100)[1]), "deterministic"


def test_rounding_leaves_what_needs_none() -> None:
    exact = torch.randn(1000).bfloat16()
    weight = torch.empty_like(exact)
    Rounding(0).into(weight, exact.float())
    assert torch.equal(weight, exact)
    value = torch.full((100_000,), -1.0 - 2**-9)  # a quarter of the way from -1 to the next bfloat16
    weight = torch.empty(len(value), dtype=torch.bfloat16)
    Rounding(3).into(weight, value)
    assert set(weight.tolist()) == {-1.0, -1.0 - 2**-7}
    assert float(weight.float().mean()) == pytest.approx(-1 - 2**-9, abs=1e-4)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [None, torch.bfloat16])
def test_at_the_anchor_nothing_moves_however_finely_it_is_kept(weights: Any, kept: Any) -> None:
    model = llama().to(weights)
    start = weights_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    shield = Protect(model, importance(model), lam=1e3, dtype=kept).attach(model, optimizer)
    assert {value.dtype for value in shield.weights.values()} == {kept or weights}, "no more than two copies"
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert same(start, weights_of(model))


# ---- other optimisers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_radius_of_step_lr_is_not_a_matter_of_clipping(clip: float | None) -> None:
    """Adam's step is lr for any gradient, so with λ a = 10 the weight converges to 1/10."""
    model = Bowl([0.0], [0.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    shield = Protect(model, equal(model, [1.0]), lam=10.0, step="lr", normalise="none", cap=None)
    shield.attach(model, optimizer, clip=clip)
    for _ in range(1000):
        model.theta.grad = torch.tensor([-20.0])
        optimizer.step()
    assert float(model.theta.detach()) == pytest.approx(0.1, rel=0.02)
    shield.detach()


def test_an_optimiser_whose_steps_cannot_be_read() -> None:
    model = llama()
    with pytest.raises(HoldfastError, match="set its lr"):
        Protect(model, importance(model), lam=1.0).attach(model, Adafactor(model.parameters()))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2, weight_decay=0.0)
    Protect(model, importance(model), lam=1.0).attach(model, optimizer)
    with pytest.warns(UserWarning, match="not comparable with its values for Adam"):
        steps(model, optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, optimizer, 1)


# ---- budgets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1.0, 0.1, 0.01, 0.001])
def test_a_budget_of_any_size_is_kept(budget: float) -> None:
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    shield = Protect(model, importance(model), budget=budget).attach(model, optimizer)
    steps(model, optimizer, 15)
    spent = []
    for _ in range(30):
        steps(model, optimizer, 1)
        spent.append(shield.spent / budget)
    assert max(spent) < 1.5
    assert 0.7 < sum(spent) / len(spent) < 1.15


# ---- LoRA ---------------------------------------------------------------------------------------------


def adapted(seed: int = 0) -> nn.Module:
    peft = pytest.importorskip("peft")
    base = llama()
    torch.manual_seed(seed)
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: nn.Module = peft.get_peft_model(base, settings)
    return model


def test_looking_ahead_with_lora_compares_like_with_like() -> None:
    """With the same data and weights, both importances are equal, so ρ = ½."""
    model = adapted()
    data = sequences(8, seed=5)
    found = measure(llama(), data, name="tiny", data="words")
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    past, ahead = on_adapters(model, found), carried(model, matters_now(model, found, data))
    assert past.keys() == ahead.keys()
    for name, value in past.items():
        torch.testing.assert_close(ahead[name], value, rtol=1e-4, atol=1e-7)
    assert frozen == {name for name, weight in model.named_parameters() if not weight.requires_grad}


def test_lora_resumes_with_the_importance_it_began_with(tmp_path: Path) -> None:
    """The importance depends on the initial adapters; a resumed training uses the saved one."""
    found, saving = importance(llama()), {"save_strategy": "steps", "save_steps": 3}
    whole, half, again = adapted(), adapted(), adapted(seed=7)
    trainer(whole, tmp_path / "whole", Protect(whole, found, lam=2.0), **saving).train()
    stopped = trainer(half, tmp_path / "half", Protect(half, found, lam=2.0), **saving)
    stopped.add_callback(StopAt(3))
    stopped.train()
    resumed = trainer(again, tmp_path / "half", Protect(again, found, lam=2.0), **saving)
    resumed.train(resume_from_checkpoint=True)
    assert same(weights_of(whole), weights_of(again))
    kept = {path.parent.name for path in (tmp_path / "half").rglob("*anchor*")}
    assert kept == {"_protect"}, "not pushed to the Hub"


# ---- the loss form ------------------------------------------------------------------------------------


def test_the_last_step_of_an_epoch_may_have_fewer_parts(tmp_path: Path) -> None:
    """40 sequences in steps of 16: two micro-batches of 8 per step, one in the third step."""
    ends = []
    for batch, parts in ((16, 1), (8, 2)):
        model = llama()
        shield = Protect(model, importance(model), lam=50.0, mode="loss")
        settings = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": parts}
        whole = {"max_steps": -1, "num_train_epochs": 2, "optim": "sgd", "max_grad_norm": 0.0}
        trainer(model, tmp_path / f"{batch}", shield, **settings, **whole).train()
        ends.append(weights_of(model))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-4, atol=1e-6)


def test_what_it_prints_is_short() -> None:
    model = llama()
    found = importance(model)
    count = sum(weight.numel() for weight in model.parameters())
    assert repr(Protect(model, found, lam=0.01)) == f"Protect(lam=0.01, {count:,} weights of 'tiny')"
    assert repr(Protect(model, found, budget=2)) == f"Protect(budget=2, {count:,} weights of 'tiny')"


@pytest.mark.filterwarnings("error")
def test_the_penalty_can_be_printed_as_the_page_says() -> None:
    model = llama()
    assert float(Protect(model, importance(model), lam=1.0).penalty().detach()) == 0.0


def test_a_loss_of_ones_own_can_have_the_penalty() -> None:
    model, twin = llama(), llama()
    found = importance(model)
    guarded, shield = Protect(model, found, lam=2.0, mode="loss"), Protect(twin, found, lam=2.0)
    with torch.no_grad():
        for weight in (*model.parameters(), *twin.parameters()):
            weight.add_(0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guarded.attach(model, optimizer)
    batch = collate([sequences(1)[0]], pad=2)
    model.train()(**batch).loss.backward()
    (twin.train()(**batch).loss + shield.penalty()).backward()
    for weight, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad)
    optimizer.step()
    model.model(input_ids=batch["input_ids"]).last_hidden_state.sum().backward()
    with pytest.raises(HoldfastError, match=r"Protect\.penalty"):
        optimizer.step()  # this loss does not contain the penalty
    guarded.detach()


# ---- invalid input ------------------------------------------------------------------------------------


def test_words_and_numbers_that_nobody_knows() -> None:
    model = llama()
    found = importance(model)
    for wrong, expected in (
        ({"step": "Adam"}, "did you mean 'adam'"),
        ({"mode": "proximl"}, "did you mean 'proximal'"),
        ({"normalise": "layer"}, "known: global"),
        ({"cap": -1.0}, "cap must be"),
        ({"budget": float("nan"), "lam": None}, "budget must be"),
    ):
        with pytest.raises(HoldfastError, match=expected):
            Protect(model, found, **{"lam": 1.0} | wrong)


def test_an_importance_that_is_no_number_spoils_nothing(tmp_path: Path) -> None:
    model = llama()
    found = importance(model)
    next(iter(found.values.values()))[0] = float("nan")
    with pytest.raises(HoldfastError, match="NaN or infinite values"):
        Protect(model, found, lam=1.0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(HoldfastError, match="NaN or infinite; check"):
        measure(model, sequences(2), name="tiny", data="words", directory=tmp_path)
    assert not (tmp_path / "importance.safetensors").exists()


def test_weights_without_an_importance_are_named() -> None:
    model = llama()
    model.model.embed_tokens.weight.requires_grad_(False)
    found = importance(model)
    model.model.embed_tokens.weight.requires_grad_(True)
    with pytest.warns(UserWarning, match="1 trained tensors have no importance.*embed_tokens"):
        Protect(model, found, lam=1.0)


def test_a_model_that_was_resized_or_compiled() -> None:
    model = llama()
    shield = Protect(torch.compile(model), importance(model), lam=1.0)
    assert shield.anchor.keys() == dict(model.named_parameters()).keys()
    model.resize_token_embeddings(50, mean_resizing=False)
    with pytest.raises(HoldfastError, match="no longer has the shape"):
        shield.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("name", ["module._orig_mod.a.weight", "_orig_mod.module.a.weight"])
def test_names_without_wrappers_in_either_order(name: str) -> None:
    assert plain_name(name) == "a.weight"


def test_an_importance_that_is_being_measured_anew_is_not_the_old_one(tmp_path: Path) -> None:
    measure(llama(), sequences(4), name="tiny", data="words", directory=tmp_path)
    Importance.load(tmp_path)
    (tmp_path / PARTIAL).touch()
    with pytest.raises(HoldfastError, match="unfinished measurement"):
        Importance.load(tmp_path)


def test_a_look_ahead_that_is_broken_off_puts_the_weights_back() -> None:
    model = llama()
    found, start = importance(model), weights_of(model)

    def broken() -> None:
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Protect.look_ahead(model, found, broken, list(sequences(4)), lam=1.0)
    assert same(start, weights_of(model))
