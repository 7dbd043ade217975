"""Protect: the exact proximal step after any optimiser's own, in Trainer and out of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import llama, sequences, tokenizer
from torch import nn
from transformers import Trainer, TrainingArguments

from holdfast.errors import HoldfastError
from holdfast.lm import Importance, Protect, clipping
from holdfast.lm.artefact import Card, measure
from holdfast.lm.finetune import Recipe, finetune
from holdfast.lm.protect import normalised, relatively
from holdfast.lm.text import collate
from holdfast.proximal import pulled

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2, weight_decay=0.0),
}


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5, clip: float | None = None
) -> None:
    model.train()
    data = sequences(4 * count)
    for number in range(count):
        batch = collate([data[4 * number + i] for i in range(4)], pad=2)
        model(**batch).loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def importance(model: nn.Module) -> Importance:
    return measure(model, sequences(8, seed=5), name="tiny", data="words")


# ---- the step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize("mode", ["proximal", "loss"])
def test_without_strength_it_is_the_bare_optimiser(kind: str, mode: Any) -> None:
    plain, guarded = llama(), llama()
    steps(plain, OPTIMIZERS[kind](plain.parameters()), clip=1.0)
    optimizer = OPTIMIZERS[kind](guarded.parameters())
    Protect(guarded, importance(guarded), lam=0.0, mode=mode).attach(guarded, optimizer)
    steps(guarded, optimizer, clip=1.0)
    assert same(weights_of(plain), weights_of(guarded))


class Bowl(nn.Module):
    """½ Σ h (θ - b)², a loss whose penalised optimum is known: h b / (h + λ a) with the anchor at 0."""

    def __init__(self, h: list[float], b: list[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(len(h)))
        self.h, self.b = torch.tensor(h), torch.tensor(b)

    def forward(self) -> torch.Tensor:
        return (self.h * (self.theta - self.b).square()).sum() / 2


def equal(model: nn.Module, values: list[float]) -> Importance:
    return Importance({"theta": torch.tensor(values)}, Card("bowl", "none", 1))


@pytest.mark.parametrize(
    ("clip", "lam"),
    [(None, 1.0), (1.0, 1.0)]
    + [pytest.param(c, l, marks=pytest.mark.slow) for c in (None, 1.0, 30.0) for l in (0.1, 1.0, 50.0)],  # noqa: E741
)
def test_it_comes_to_rest_at_the_optimum_of_loss_and_penalty(clip: float | None, lam: float) -> None:
    a = [1.0, 0.5, 2.0]
    model = Bowl([1.0, 2.0, 0.5], [80.0, -30.0, 50.0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.0)
    Protect(model, equal(model, a), lam=lam, normalise="none", cap=None).attach(model, optimizer)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for _ in range(6000):
        optimizer.zero_grad()
        model().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        decay.step()
    expected = model.h * model.b / (model.h + lam * torch.tensor(a))
    torch.testing.assert_close(model.theta.detach(), expected, rtol=0.01, atol=0.05)


def test_torch_clips_as_before_when_all_are_gone() -> None:
    gc.collect()  # what other tests have left attached
    inner = clipping._module
    before = clipping._original
    assert before.__module__.startswith("torch.")
    model = Bowl([1.0], [1.0])
    shield = Protect(model, equal(model, [1.0]), lam=1.0)
    shield.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert inner._clip_grads_with_norm_ is not before
    other = Protect(model, equal(model, [1.0]), lam=1.0)
    other.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    shield.detach()
    assert inner._clip_grads_with_norm_ is not before
    other.detach()
    assert inner._clip_grads_with_norm_ is before


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
    with pytest.raises(HoldfastError, match="other weights than those protected"):
        Protect(model, found, lam=1.0).attach(model, torch.optim.SGD(llama().parameters(), lr=0.1))
    for wrong, expected in (
        ({}, "give lam"),
        ({"lam": 1.0, "budget": 1.0}, "give lam"),
        ({"lam": -1.0}, "0 or more"),
        ({"lam": float("nan")}, "0 or more"),
        ({"budget": 1.0, "mode": "loss"}, "proximal"),
    ):
        with pytest.raises(HoldfastError, match=expected):
            Protect(model, found, **wrong)
    decaying = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(HoldfastError, match="weight_decay=0"):
        Protect(model, found, lam=1.0).attach(model, decaying)
    with pytest.raises(HoldfastError, match="measured on other weights"):
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


# ---- in Trainer -------------------------------------------------------------------------------------------


def trainer(model: nn.Module, out: Path, *callbacks: Any, **rest: Any) -> Trainer:
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "save_strategy": "no",
    }
    arguments = TrainingArguments(
        output_dir=str(out),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        **settings | rest,
    )
    data = list(sequences(40))
    return Trainer(
        model,
        arguments,
        train_dataset=data,
        data_collator=lambda rows: collate(rows, 2),
        callbacks=list(callbacks),
    )


def test_three_lines_with_the_real_trainer(tmp_path: Path) -> None:
    """As in the README: importance, Protect, a callback."""
    naive, model = llama(), llama()
    trainer(naive, tmp_path / "naive").train()
    found = importance(model)
    found.save(tmp_path / "imp")

    protect = Protect(model, Importance.load(f"{tmp_path}/imp/"), lam=100.0)
    trainer(model, tmp_path / "held", protect).train()

    start = weights_of(llama())

    def moved(one: nn.Module) -> float:
        return sum(
            float((found.values[n] * (w.detach() - start[n]) ** 2).sum()) for n, w in one.named_parameters()
        )

    assert moved(model) < 0.1 * moved(naive)


def test_without_strength_the_trainer_trains_as_ever(tmp_path: Path) -> None:
    naive, model = llama(), llama()
    trainer(naive, tmp_path / "a", gradient_accumulation_steps=2).train()
    trainer(
        model, tmp_path / "b", Protect(model, importance(model), lam=0.0), gradient_accumulation_steps=2
    ).train()
    assert same(weights_of(naive), weights_of(model))


@pytest.mark.parametrize("mode", ["proximal", "loss"])
def test_accumulated_batches_are_one_step(tmp_path: Path, mode: Any) -> None:
    """Twice two sequences or four at once: the same penalty, up to the order of sums."""
    ends = []
    for batch, parts in ((4, 1), (2, 2)):
        model = llama()
        shield = Protect(model, importance(model), lam=5.0, mode=mode)
        settings = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": parts}
        trainer(model, tmp_path / f"{mode}{batch}", shield, lr_scheduler_type="linear", **settings).train()
        ends.append(weights_of(model))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("budget", [None, 0.5])
@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, budget: float | None, from_checkpoint: bool
) -> None:
    strength: dict[str, Any] = {"lam": 2.0} if budget is None else {"budget": budget}
    whole = llama()
    found = importance(whole)
    trainer(
        whole, tmp_path / "whole", Protect(whole, found, **strength), save_strategy="steps", save_steps=3
    ).train()
    half = llama()
    shield = Protect(half, found, **strength)
    stopped = trainer(half, tmp_path / "half", shield, save_strategy="steps", save_steps=3)
    stopped.add_callback(StopAt(3))
    stopped.train()
    # A user may well load the checkpoint's weights first: they are no anchor, and the importance says so.
    again = llama() if not from_checkpoint else type(half).from_pretrained(tmp_path / "half" / "checkpoint-3")
    free = Importance(found.values, Card("tiny", "words", 8)) if from_checkpoint else found
    resumed = trainer(
        again, tmp_path / "half", Protect(again, free, **strength), save_strategy="steps", save_steps=3
    )
    resumed.train(resume_from_checkpoint=True)
    assert same(weights_of(whole), weights_of(again))


from transformers import TrainerCallback  # noqa: E402


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def test_looking_ahead_puts_the_weights_back_and_holds_relatively(tmp_path: Path) -> None:
    model = llama()
    start, found = weights_of(model), importance(model)
    shield = Protect.look_ahead(
        model,
        found,
        lambda: trainer(model, tmp_path / "ahead").train(),
        list(sequences(10)),
        lam=3.0,
        down=0.1,
    )
    assert same(start, weights_of(model))
    assert same(start, shield.anchor)
    plain = Protect(llama(), found, lam=3.0)
    ratio = torch.cat(
        [(shield.weights[n] / plain.weights[n].clamp(min=1e-9)).flatten() for n in shield.weights]
    )
    assert float(ratio.max()) > 1 > 0.1 >= float(ratio.min()), "some are held faster, some are let go"
    trainer(model, tmp_path / "main", shield).train()
    assert not same(start, weights_of(model))


def test_fine_tuning_by_itself_resumes_and_refuses_a_loss_that_is_none(tmp_path: Path) -> None:
    whole, half = llama(), llama()
    recipe = Recipe(lr=0.01, steps=6, save_every=2)
    finetune(whole, sequences(40), 2, recipe, tmp_path / "whole")

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(half, sequences(40), 2, recipe, tmp_path / "half", on_step=stop)
    again = llama()
    finetune(again, sequences(40), 2, recipe, tmp_path / "half")
    assert same(weights_of(whole), weights_of(again))
    broken = llama()
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(float("nan"))
    with pytest.raises(HoldfastError, match=r"not a number at step 1: lower the rate"):
        finetune(broken, sequences(8), 2, Recipe(steps=2), tmp_path / "broken")


def test_a_finished_training_is_not_trained_on(tmp_path: Path) -> None:
    recipe = Recipe(lr=0.01, steps=4, save_every=2)
    first, again, other = llama(), llama(), llama()
    finetune(first, sequences(20), 2, recipe, tmp_path)
    finetune(again, sequences(20), 2, recipe, tmp_path)
    assert same(weights_of(first), weights_of(again))
    for changed in (
        {"recipe": Recipe(lr=0.02, steps=4, save_every=2)},
        {"train": sequences(21)},
        {"protect": Protect(other, importance(other), lam=1.0)},
    ):
        settings: dict[str, Any] = {"train": sequences(20), "recipe": recipe} | changed
        with pytest.raises(
            HoldfastError, match=f"another {'data' if 'train' in changed else next(iter(changed))}"
        ):
            finetune(
                other, settings["train"], 2, settings["recipe"], tmp_path, protect=settings.get("protect")
            )


def test_weighted_samples_count_by_their_weight(tmp_path: Path) -> None:
    """A weight of 0 is a sample that is not there."""
    data = sequences(8)
    some, all_of = llama(), llama()
    recipe = Recipe(lr=0.01, steps=4, batch=8)
    finetune(all_of, data, 2, recipe, tmp_path / "all", weights=[1.0] * 4 + [0.0] * 4)
    finetune(some, data.first(4), 2, Recipe(lr=0.01, steps=4, batch=4), tmp_path / "some", weights=[1.0] * 4)
    for name, value in weights_of(some).items():
        torch.testing.assert_close(weights_of(all_of)[name], value, rtol=1e-3, atol=1e-4)


# ---- LoRA -------------------------------------------------------------------------------------------------


def test_lora_is_held_by_its_own_weights(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = llama()
    found = importance(base)
    settings = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model, naive = (peft.get_peft_model(llama(), settings) for _ in range(2))
    shield = Protect(model, found, lam=1e6)
    assert shield.weights.keys() == {name for name, w in model.named_parameters() if "lora_B" in name}
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"
    layer = model.get_submodule(name.removesuffix(".lora_B.default.weight"))
    expected = (
        layer.scaling["default"]
        * found.values["model.layers.0.self_attn.q_proj.weight"]
        @ layer.lora_A["default"].weight.detach().abs().T
    )
    raw = Protect(model, found, lam=1.0, normalise="none", cap=None).weights[name]
    torch.testing.assert_close(raw, expected)
    trainer(model, tmp_path / "held", shield).train()
    trainer(naive, tmp_path / "naive").train()

    def effect(one: nn.Module) -> float:
        return max(float(w.detach().abs().max()) for n, w in one.named_parameters() if "lora_B" in n)

    assert effect(model) < 0.01 * effect(naive)
    with pytest.raises(HoldfastError, match="measured on other weights"):
        Protect(peft.get_peft_model(llama(1), settings), found, lam=1.0)


@pytest.mark.slow
def test_it_works_with_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = [
        {"input_ids": row["input_ids"].tolist(), "labels": row["labels"].tolist()} for row in sequences(40)
    ]

    def train(model: nn.Module, *callbacks: Any) -> None:
        settings = trl.SFTConfig(
            output_dir=str(tmp_path / "out"), max_steps=5, per_device_train_batch_size=4, learning_rate=0.01,
            report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trl.SFTTrainer(
            model,
            settings,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer(),
            callbacks=list(callbacks),
        ).train()

    naive, model, off = llama(), llama(), llama()
    train(naive)
    train(off, Protect(off, importance(off), lam=0.0))
    assert same(weights_of(naive), weights_of(off))
    train(model, Protect(model, importance(model), lam=1e4))
    start = weights_of(llama())

    def moved(one: nn.Module) -> float:
        return sum(float((w.detach() - start[n]).abs().sum()) for n, w in one.named_parameters())

    assert moved(model) < 0.5 * moved(naive)
