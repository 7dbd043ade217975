"""Importance of a language model: compared with a naive computation; saving and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import llama, pairs, sequences, tokenizer

from holdfast.errors import HoldfastError
from holdfast.importance.sequences import sequence_fisher, sequence_mas
from holdfast.lm.artefact import Card, Importance, fingerprint, measure, read_card, readme
from holdfast.lm.text import collate, encode
from holdfast.maths.losses import IGNORED


def naive(model: torch.nn.Module, data, squared: bool = False) -> dict[str, torch.Tensor]:
    """Compute the importance with one forward and backward pass per token."""
    names = dict(model.named_parameters())
    total = {name: torch.zeros_like(weight) for name, weight in names.items()}
    for sequence in data:
        ids, labels = sequence["input_ids"], sequence["labels"]
        places = [t for t in range(1, len(ids)) if labels[t] != IGNORED]
        own = {name: torch.zeros_like(weight) for name, weight in names.items()}
        for t in places:
            z = model(input_ids=ids[None, :t]).logits[0, -1]  # causal: later tokens have no effect
            norm = (z * z).sum() if squared else (z * z).sum().sqrt()
            for name, gradient in zip(names, torch.autograd.grad(norm, list(names.values())), strict=True):
                own[name] += gradient / len(places)
        for name in names:
            total[name] += own[name].abs() / len(data)
    return total


@pytest.mark.parametrize("squared", [False, True])
def test_it_is_the_naive_computation(squared: bool) -> None:
    model, data = llama().eval(), sequences(5)
    found, expected = sequence_mas(model, data, squared=squared), naive(model, data, squared)
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6 * float(value.max()))


def test_fisher_is_the_naive_computation() -> None:
    model, data = llama().eval(), sequences(4)
    names = dict(model.named_parameters())
    expected = {name: torch.zeros_like(weight) for name, weight in names.items()}
    for sequence in data:
        output = model(input_ids=sequence["input_ids"][None], labels=sequence["labels"][None])
        count = int((sequence["labels"] != IGNORED).sum())
        gradients = torch.autograd.grad(output.loss * count, list(names.values()))
        for name, gradient in zip(names, gradients, strict=True):
            expected[name] += gradient**2 / count / len(data)
    found = sequence_fisher(model, data)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6 * float(value.max()))


def test_padding_batches_and_order_do_not_change_it() -> None:
    model, data = llama().eval(), sequences(6)
    plain = sequence_mas(model, data)
    for size in (2, 3, 6):
        rows = []
        for start in range(0, 6, size):
            batch = collate(
                [data[i] for i in range(start, start + size)], pad=2
            )  # the pad token is the end-of-text token
            rows += [{name: value[i] for name, value in batch.items()} for i in range(size)]
        padded = sequence_mas(model, rows[::-1])
        whole = [collate([data[i] for i in range(start, start + size)], pad=2) for start in range(0, 6, size)]
        for name, value in sequence_mas(model, whole).items():
            torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-6 * float(value.max()))
        for name, value in plain.items():
            torch.testing.assert_close(padded[name], value, rtol=1e-5, atol=1e-6 * float(value.max()))


def test_the_prompt_does_not_count() -> None:
    """Only the logits that predict output tokens count."""
    model, data = llama().eval(), sequences(3)
    whole = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in data]
    one = "model.layers.0.mlp.up_proj.weight"
    assert not torch.allclose(sequence_mas(model, data)[one], sequence_mas(model, whole)[one], rtol=1e-3)
    nothing = {"input_ids": data[0]["input_ids"], "labels": torch.full_like(data[0]["labels"], IGNORED)}
    both = sequence_mas(model, [data[0], nothing])
    torch.testing.assert_close(both[one], sequence_mas(model, [data[0]])[one])


def test_dropout_is_off_and_the_model_is_left_as_it_was() -> None:
    model = llama(attention_dropout=0.5).train()
    first, second = (sequence_mas(model, sequences(3)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


class Stopped(BaseException):
    pass


def test_a_stopped_measurement_goes_on(tmp_path: Path) -> None:
    model, data = llama(), sequences(50)
    whole = measure(model, data, name="tiny", data="words", directory=tmp_path / "whole")
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done == 33:
            raise Stopped

    with pytest.raises(Stopped):
        measure(model, data, name="tiny", data="words", directory=tmp_path / "half", on_sequence=stop)
    with pytest.raises(HoldfastError, match="holds an unfinished measurement"):
        Importance.load(tmp_path / "half")
    again = measure(
        model,
        data,
        name="tiny",
        data="words",
        directory=tmp_path / "half",
        on_sequence=lambda d, t: seen.append(d),
    )
    assert seen == [*range(1, 34), *range(21, 51)]
    assert all(torch.equal(again.values[name], value) for name, value in whole.values.items())
    assert sorted(path.name for path in (tmp_path / "half").iterdir()) == [
        *("README.md", "card.json", "importance.safetensors")
    ]


@pytest.mark.parametrize("place", ["between", "before the sums", "amid the sums"])
def test_an_interrupted_measurement_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    model, data = llama(), sequences(30)
    whole = measure(model, data, name="tiny", data="words")
    seen: list[int] = []
    calls = {"grad": 0, "abs": 0}

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if place == "between" and done == 27:
            raise KeyboardInterrupt

    def interrupted(kind: str, inner: Any, at: int) -> Any:
        def one(*arguments: Any, **options: Any) -> Any:
            calls[kind] += 1
            if calls[kind] == at:
                raise KeyboardInterrupt
            return inner(*arguments, **options)

        return one

    if place == "before the sums":  # of sequence 28
        monkeypatch.setattr(torch.autograd, "grad", interrupted("grad", torch.autograd.grad, 28))
    if place == "amid the sums":
        tensors = len(whole.values)
        monkeypatch.setattr(torch, "abs", interrupted("abs", torch.abs, 27 * tensors + 3))
    with pytest.raises(KeyboardInterrupt):
        measure(model, data, name="tiny", data="words", directory=tmp_path, on_sequence=stop)
    monkeypatch.undo()
    again = measure(
        model, data, name="tiny", data="words", directory=tmp_path, on_sequence=lambda d, t: seen.append(d)
    )
    first = 21 if place == "amid the sums" else 28  # sums of which some contain a sequence are not kept
    assert seen == [*range(1, 28), *range(first, 31)]
    assert all(torch.equal(again.values[name], value) for name, value in whole.values.items())


def test_a_finished_measurement_is_loaded_or_kept(tmp_path: Path) -> None:
    model, data = llama(), sequences(8)
    done = measure(model, data, name="tiny", data="words", directory=tmp_path)
    seen: list[int] = []

    def again(model: Any = model, data: Any = data, **changes: Any) -> Importance:
        asked = {"name": "tiny", "data": "words"} | changes
        return measure(model, data, directory=tmp_path, on_sequence=lambda d, t: seen.append(d), **asked)

    found = again()
    assert found.card == done.card
    assert all(torch.equal(found.values[name], value) for name, value in done.values.items())
    shorter = encode(pairs(8), tokenizer(), 7)
    for change, word in (
        ({"model": llama(1)}, "model"),
        ({"data": sequences(9)}, "count"),
        ({"data": shorter}, "max-tokens, or the text of the data"),
        ({"kind": "fisher"}, "kind"),
        ({"squared": True}, "squared"),
    ):
        with pytest.raises(HoldfastError, match=rf"an importance of other settings \({word}\); choose"):
            again(**change)
    assert not seen
    Importance(done.values, Card("tiny", "words", 8, fingerprint=done.card.fingerprint)).save(tmp_path)
    with pytest.raises(HoldfastError, match="does not say on which tokens"):
        again()


def test_what_was_left_by_another_measurement_is_not_gone_on_with(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 25:
            raise Stopped

    with pytest.raises(Stopped):
        measure(llama(1), sequences(30), name="x", data="words", directory=tmp_path, on_sequence=stop)
    found = measure(llama(0), sequences(30), name="x", data="words", directory=tmp_path)
    plain = sequence_mas(llama(0), sequences(30))
    assert all(torch.equal(found.values[name], value) for name, value in plain.items())


def test_the_artefact_comes_back_and_refuses_another_model(tmp_path: Path) -> None:
    model = llama()
    found = measure(model, sequences(3), name="tiny/llama", data="words.jsonl", squared=True)
    found.save(tmp_path)
    again = Importance.load(tmp_path)
    assert again.card == found.card == read_card(tmp_path)
    assert (again.card.sequences, again.card.squared, again.card.model) == (3, True, "tiny/llama")
    assert all(torch.equal(again.values[name], value) for name, value in found.values.items())
    again.check(dict(model.named_parameters()))
    again.check(dict(model.bfloat16().named_parameters()))  # the same model, loaded in half precision
    with pytest.raises(HoldfastError, match="measured on different weights of tiny/llama"):
        again.check(dict(llama(1).named_parameters()))
    with pytest.raises(HoldfastError, match=r"model\.\S+ is missing or has another shape"):
        again.check(dict(llama(hidden_size=32).named_parameters()))
    with pytest.raises(
        HoldfastError,
        match="nowhere does not exist; measure an importance with: holdfast lm importance --out",
    ):
        Importance.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(HoldfastError, match="empty holds no importance; measure an importance with"):
        Importance.load(tmp_path / "empty")
    card = (tmp_path / "README.md").read_text()
    assert "tiny/llama" in card
    assert "squared L2 norm" in card


@pytest.mark.parametrize(
    ("model", "base"),
    [("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"), ("owner/name", "owner/name"), ("./mine", None)],
)
def test_the_page_of_an_importance_names_a_model_of_the_hub(model: str, base: str | None) -> None:
    page = readme(Card(model, "code", 60))
    head = page.split("---")[1]
    assert head.partition("base_model: ")[2].strip() == (base or "")
    assert ("converted to float32" in page) == (model == "smollm2")
    assert f'model, tokenizer = load_lm("{model}")' in page


def test_nothing_to_measure(tmp_path: Path) -> None:
    row = sequences(1)[0]
    silent = [{"input_ids": row["input_ids"], "labels": torch.full_like(row["labels"], IGNORED)}]
    with pytest.raises(HoldfastError, match="no sequence has an output"):
        measure(llama(), silent, name="x", data="silence")


def test_fingerprints() -> None:
    one = dict(llama().named_parameters())
    assert fingerprint(one) == fingerprint(dict(llama().named_parameters()))
    assert fingerprint(one) != fingerprint(dict(llama(1).named_parameters()))
