"""Protect as a Trainer callback: resuming, gradient accumulation, LoRA and TRL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT
from helpers.protection import StopAt, trainer
from helpers.tiny import importance, llama, same, saved, sequences, tokenizer, weights_of
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.lm import Importance, Protect
from holdfast.lm.artefact import Card
from holdfast.lm.finetune import Recipe, finetune, sequence_losses


def test_three_lines_with_the_real_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's example with a tiny model: the stronger the penalty, the less the weights move."""
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## Protect a language model")[2]
    lines = section.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    found = importance(llama())
    found.save("imp")
    saved(tmp_path / "smollm2")

    def train(code: str) -> nn.Module:
        plain = trainer(llama(), tmp_path / "out")
        given = {"args": plain.args, "data": plain.train_dataset, "collate": plain.data_collator}
        exec(code.replace('"smollm2"', f'"{tmp_path}/smollm2"'), given)
        model: nn.Module = given["model"]
        return model

    start = weights_of(llama())

    def moved(one: nn.Module) -> float:
        return sum(
            float((found.values[n] * (w.detach() - start[n]) ** 2).sum()) for n, w in one.named_parameters()
        )

    free = moved(train(lines.replace("lam=0.01", "lam=0.0")))
    assert free > 0
    assert moved(train(lines)) < free
    assert moved(train(lines.replace("lam=0.01", "lam=100.0"))) < 0.1 * free


def test_without_strength_the_trainer_trains_as_ever(tmp_path: Path) -> None:
    naive, model = llama(), llama()
    trainer(naive, tmp_path / "a", gradient_accumulation_steps=2).train()
    trainer(
        model, tmp_path / "b", Protect(model, importance(model), lam=0.0), gradient_accumulation_steps=2
    ).train()
    assert same(weights_of(naive), weights_of(model))


@pytest.mark.parametrize("mode", ["proximal", "loss"])
def test_accumulated_batches_are_one_step(tmp_path: Path, mode: Any) -> None:
    """Two batches of two give the same result as one batch of four, up to rounding."""
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
    # A user may load the checkpoint's weights first; they are not the anchor.
    again = llama() if not from_checkpoint else type(half).from_pretrained(tmp_path / "half" / "checkpoint-3")
    free = Importance(found.values, Card("tiny", "words", 8)) if from_checkpoint else found
    resumed = trainer(
        again, tmp_path / "half", Protect(again, free, **strength), save_strategy="steps", save_steps=3
    )
    resumed.train(resume_from_checkpoint=True)
    assert same(weights_of(whole), weights_of(again))


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
    assert float(ratio.max()) > 1 > 0.1 >= float(ratio.min()), "some weights are protected more, some less"
    trainer(model, tmp_path / "main", shield).train()
    assert not same(start, weights_of(model))


def test_looking_ahead_where_not_all_is_trained(tmp_path: Path) -> None:
    """LoRA adapters, and a model with frozen weights: the importance covers more than is trained."""
    peft = pytest.importorskip("peft")
    found = importance(llama())
    frozen = llama()
    frozen.get_input_embeddings().weight.requires_grad_(False)
    adapted = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for number, model in enumerate((frozen, adapted)):
        before = weights_of(model)
        ahead = trainer(model, tmp_path / f"ahead{number}")
        shield = Protect.look_ahead(
            model, found, lambda ahead=ahead: ahead.train(), list(sequences(6)), lam=1.0
        )
        assert same(before, weights_of(model))
        live = {name for name, weight in model.named_parameters() if weight.requires_grad}
        assert shield.weights.keys() <= live
        trainer(model, tmp_path / f"main{number}", shield).train()
        assert not same(before, weights_of(model))


def test_looking_ahead_with_an_importance_of_the_adapters(tmp_path: Path) -> None:
    """The importance may have been measured on the PEFT model itself; its names keep their prefix."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    before, found = weights_of(model), importance(model)
    shield = Protect.look_ahead(
        model, found, lambda: trainer(model, tmp_path / "ahead").train(), list(sequences(6)), lam=1.0
    )
    assert same(before, weights_of(model))
    assert shield.weights.keys() == found.values.keys()


def test_a_loss_that_is_not_used_holds_nothing_and_says_so(tmp_path: Path) -> None:
    """The trainer computes its own loss from the logits, as TRL does."""
    model = llama()
    own = trainer(model, tmp_path / "out", Protect(model, importance(model), lam=1.0, mode="loss"))
    own.compute_loss = lambda model, inputs, *_, **__: sequence_losses(  # type: ignore[method-assign]
        model(**inputs).logits, inputs["labels"]
    ).mean()
    with pytest.raises(HoldfastError, match="does not use the model's own loss"):
        own.train()


def test_a_kill_just_after_a_checkpoint_leaves_a_training_to_go_on_with(tmp_path: Path) -> None:
    """The note is written before the checkpoint, so a kill before `on_save` does no harm."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3}
    whole, half = llama(), llama()
    found = importance(whole)
    trainer(whole, tmp_path / "whole", Protect(whole, found, lam=2.0), **saving).train()
    shield = Protect(half, found, lam=2.0)
    killed = trainer(half, tmp_path / "half", shield, **saving)

    def killed_here(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    killed.callback_handler.on_save = killed_here  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    again = llama()
    resumed = trainer(again, tmp_path / "half", Protect(again, found, lam=2.0), **saving)
    resumed.train(resume_from_checkpoint=True)
    assert same(weights_of(whole), weights_of(again))


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
    with pytest.raises(
        HoldfastError, match=r"NaN or infinite at step 1: start again with a lower learning rate"
    ):
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
            HoldfastError, match=rf"\({'data' if 'train' in changed else next(iter(changed))}\)"
        ):
            finetune(
                other, settings["train"], 2, settings["recipe"], tmp_path, protect=settings.get("protect")
            )


@pytest.mark.parametrize("accumulation", [1, 4])
def test_weights_of_one_are_plain_training(tmp_path: Path, accumulation: int) -> None:
    """Ten batches with four per step: the last step has two."""
    plain, weighted = llama(), llama()
    recipe = Recipe(lr=0.01, epochs=1, batch=2, accumulation=accumulation)
    finetune(plain, sequences(20), 2, recipe, tmp_path / "plain")
    finetune(weighted, sequences(20), 2, recipe, tmp_path / "weighted", weights=[1.0] * 20)
    for name, value in weights_of(plain).items():
        torch.testing.assert_close(weights_of(weighted)[name], value, rtol=1e-4, atol=1e-6)


def test_weighted_samples_count_by_their_weight(tmp_path: Path) -> None:
    """A weight of 0 equals leaving the sample out, up to a common factor, which Adam ignores."""
    data = sequences(8)
    some, all_of = llama(), llama()
    recipe = Recipe(lr=0.01, steps=4, batch=8, clip=0.0)
    finetune(all_of, data, 2, recipe, tmp_path / "all", weights=[1.0] * 4 + [0.0] * 4)
    finetune(some, data.first(4), 2, replace(recipe, batch=4), tmp_path / "some", weights=[1.0] * 4)
    for name, value in weights_of(some).items():
        torch.testing.assert_close(weights_of(all_of)[name], value, rtol=1e-3, atol=1e-4)


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
    with pytest.raises(HoldfastError, match="measured on different weights"):
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
    other = llama()
    with pytest.raises(HoldfastError, match="does not use the model's own loss"):
        train(other, Protect(other, importance(other), lam=1e4, mode="loss"))
