"""Adapters in the top layers only: the layers below are frozen and computed once per sentence of a task."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.learners import make_learner, make_method
from helpers.toys import class_stream, domain_stream, small
from helpers.weights import distance, weights_of
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from holdfast.data.batches import Batch
from holdfast.errors import HoldfastError
from holdfast.everyday.export import export
from holdfast.everyday.exported import TorchClassifier
from holdfast.heads import LinearHead
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.models import Network, build_classifier, prefix
from holdfast.models.adapters import ADAPTERS, FAMILIES, Adapter, adapt, layers_of

LAYERS, TOP = 3, 1
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
EXTRAS: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3},
    "distilbert": {"hidden_dim": 48, "n_layers": LAYERS},
    "electra": {"embedding_size": 16},
    "modernbert": {"attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1},
}
SENTENCES = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14, 15], [16, 17, 18, 19, 20]]


class Words:
    """A tokenizer whose texts are token ids in words."""

    pad_token_id = 0

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


TEXTS = [" ".join(map(str, ids)) for ids in SENTENCES]


def network(family: str, top: int | None = TOP) -> Network:
    torch.manual_seed(0)
    encoder = AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **EXTRAS.get(family, {}))).eval()
    adapt(encoder, ADAPTERS["lacl"], seed=0, top=top)  # adapters that change the output from the start
    head = LinearHead(32)
    head.add(["on", "off"])
    model = Network(encoder, Words(), head)  # type: ignore[arg-type]
    model.frozen = layers_of(encoder)[:-top] if top else []
    return model.eval()


def batch_of(rows: list[list[int]]) -> Batch:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return Batch(ids, mask, torch.zeros(len(rows), dtype=torch.long))


def trained_step(model: Network, batch: Batch) -> tuple[Tensor, P.Params]:
    """Return the logits in training mode, dropout drawn from one seed, and the gradients of their squares."""
    model.train()
    torch.manual_seed(7)
    logits = model(batch).logits
    weights = P.trainable(model)
    found = torch.autograd.grad(logits.square().sum(), list(weights.values()))
    model.eval()
    return logits.detach(), dict(zip(weights, found, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_remembered_gives_the_same_outputs_and_gradients(family: str) -> None:
    model = network(family)
    batches = [batch_of(SENTENCES), batch_of([SENTENCES[2], SENTENCES[0]]), batch_of([SENTENCES[1]])]
    expected = [trained_step(model, batch) for batch in batches]
    model.remember(TEXTS)
    assert model.prefix is not None
    trained_step(model, batches[0])  # fills the cache
    assert len(model.prefix.known) == len(SENTENCES)
    calls = counted(model)
    for batch, (logits, gradients) in zip(batches, expected, strict=True):
        found, own = trained_step(model, batch)
        assert torch.allclose(found, logits, atol=1e-5)
        assert distance(own, gradients) < 1e-5 * max(
            1.0, float(max(g.abs().max() for g in gradients.values()))
        )
    assert calls == [0, 0, len(batches)], "frozen layers are not computed again"
    changed, _ = trained_step(model, batch_of([[5, 6, 7, 8]]))
    assert calls[0] == 1, "an unknown sentence is computed"
    model.unremember()
    assert torch.allclose(changed, trained_step(model, batch_of([[5, 6, 7, 8]]))[0], atol=1e-6)


def counted(model: Network) -> list[int]:
    """Count the passes of each layer's attention."""
    calls = [0] * LAYERS
    for number, layer in enumerate(layers_of(model.encoder)):
        inner = next(module for name, module in layer.named_modules() if name and "att" in name)

        def count(*_: Any, number: int = number) -> None:
            calls[number] += 1

        inner.register_forward_hook(count)
    return calls


def test_the_lower_layers_written_out() -> None:
    """The second witness: embeddings and lower layers by hand in eval mode, the top layer in training."""
    model = network("bert")
    model.remember(TEXTS)
    batch = batch_of([SENTENCES[0], [21, 22, 23]])
    model.vectors(batch_of(SENTENCES))
    model.train()
    torch.manual_seed(3)
    found = model.vectors(batch_of([SENTENCES[0]]))
    encoder: Any = model.encoder
    ids = batch.input_ids[:1]
    encoder.eval()
    states = encoder.embeddings(input_ids=ids)
    model.unremember()
    for layer in encoder.encoder.layer[:-TOP]:
        states = layer(states, None)
    torch.manual_seed(3)
    for layer in encoder.encoder.layer[-TOP:]:
        states = layer.train()(states, None)
    assert torch.allclose(found, states.mean(1), atol=1e-5)


def test_dropout_is_off_below_the_adapted_layers_only() -> None:
    model = network("bert").train()
    lower, upper = model.frozen, layers_of(model.encoder)[-TOP:]
    assert not any(module.training for layer in lower for module in layer.modules())
    assert not model.encoder.get_submodule("embeddings").training
    assert all(module.training for layer in upper for module in layer.modules())
    assert model.dropout.training
    assert not any(module.training for module in model.eval().modules())


def test_only_the_top_layers_have_adapters(tiny_bert: str) -> None:
    model = build_classifier(tiny_bert, small(adapt_layers=1))
    layers = layers_of(model.encoder)
    assert len(layers) == 2, "the tiny model"
    found = [any(isinstance(one, Adapter) for one in layer.modules()) for layer in layers]
    assert found == [False, True]
    assert all(name.startswith(("encoder.encoder.layer.1.", "head.")) for name in P.trainable(model))
    with pytest.raises(HoldfastError, match="adapt_layers is 3, but the encoder has 2 layers"):
        build_classifier(tiny_bert, small(adapt_layers=3))


def test_all_layers_adapted_is_the_usual_model(tiny_bert: str) -> None:
    usual, every = (build_classifier(tiny_bert, small(adapt_layers=n)) for n in (None, 2))
    assert not every.frozen
    state = usual.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in every.state_dict().items())
    every.remember(["play some jazz"])
    assert every.prefix is None


def test_the_cache_says_its_size_and_keeps_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("bert")
    model.remember([*TEXTS, TEXTS[0]])
    assert model.prefix is not None
    model.vectors(batch_of(SENTENCES))
    tokens = sum(map(len, SENTENCES))
    kept = sum(one.numel() * one.element_size() for one in model.prefix.known.values())
    assert model.prefix.bytes == kept == 4 * 32 * tokens, "the same sentence once"
    monkeypatch.setattr(prefix, "MOST_BYTES", 4 * 32 * 9)
    expected = model.vectors(batch_of(SENTENCES))
    model.remember(TEXTS)
    for _ in range(2):
        assert torch.allclose(model.vectors(batch_of(SENTENCES)), expected, atol=1e-6)
    assert set(model.prefix.known) == {tuple(SENTENCES[0]), tuple(SENTENCES[1])}


def test_vectors_of_several_layers_are_remembered_only_from_adapted_ones() -> None:
    model = network("bert")
    for layers, kept in ((2, True), (3, False)):
        model.reading = model.reading._replace(layers=layers)
        model.unremember()
        expected = model.vectors(batch_of(SENTENCES))
        model.remember(TEXTS)
        assert (model.prefix is not None) == kept
        for _ in range(2):
            assert torch.allclose(model.vectors(batch_of(SENTENCES)), expected, atol=1e-6)


def test_another_thread_may_predict_while_a_task_is_learnt() -> None:
    model = network("bert")
    batches = [batch_of(SENTENCES[:2]), batch_of([SENTENCES[3], [30, 31]])]
    expected = [model.vectors(batch) for batch in batches]
    model.remember(TEXTS)
    wrong: list[float] = []

    def read(number: int) -> None:
        for _ in range(60):
            with torch.no_grad():
                gap = (model.vectors(batches[number]) - expected[number]).abs().max()
            wrong.extend([float(gap)] if gap > 1e-5 else [])

    threads = [threading.Thread(target=read, args=(number,)) for number in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- a learner ------------------------------------------------------------------------------------------


QUICK = ("la", "slda")
SLOW = ("seq", "mas", "ewc", "lwf", "rp2f", "upgd", "la+slda")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
@pytest.mark.parametrize("stream", [class_stream, pytest.param(domain_stream, marks=pytest.mark.slow)])
def test_every_kind_of_method_learns_the_same_with_and_without_the_cache(
    tiny_bert: str, name: str, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = stream().tasks[:2]

    def taught() -> Learner:
        learner = make_learner(tiny_bert, make_method(name), stream(), small(adapt_layers=1))
        for task in tasks:
            learner.learn(task)
            assert learner.model.prefix is None, "nothing is kept after a task"
            assert not any("forward" in layer.__dict__ for layer in learner.model.frozen)
        return learner

    cached = taught()
    with monkeypatch.context() as patch:
        patch.setattr(Network, "remember", lambda model, texts: None)
        plain = taught()
    one, other = weights_of(cached), weights_of(plain)
    assert one.keys() == other.keys()
    assert max(float((one[n].double() - other[n].double()).abs().max()) for n in one) < 1e-4
    begun = build_classifier(tiny_bert, small(adapt_layers=1)).state_dict()
    lower = [n for n in one if n.startswith(("encoder.embeddings", "encoder.encoder.layer.0."))]
    assert lower
    assert all(torch.equal(one[n], begun[n]) for n in lower)
    texts = [text for task in tasks for text in task.test.texts]
    assert torch.allclose(cached.model.logits(texts), plain.model.logits(texts), atol=1e-3)


def test_an_interrupted_lesson_leaves_nothing_behind(tiny_bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(tiny_bert, make_method("mas"), class_stream(), small(adapt_layers=1))
    monkeypatch.setattr(type(learner.method), "consolidate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.learn(class_stream().tasks[0])
    assert learner.model.prefix is None
    assert not any("forward" in layer.__dict__ for layer in learner.model.frozen)


@pytest.mark.parametrize("method", ["mas", "la+slda"])
def test_a_saved_learner_is_the_same(tiny_bert: str, tmp_path: Path, method: str) -> None:
    task = class_stream().tasks[0]
    learner = Learner.create(tiny_bert, method, settings=small(adapt_layers=1))
    learner.learn(task.train.texts, task.train.labels)
    learner.save(tmp_path / "state")
    loaded = Learner.load(tmp_path / "state")
    assert loaded.settings.adapt_layers == 1
    assert len(loaded.model.frozen) == 1
    assert torch.equal(loaded.model.logits(task.test.texts), learner.model.logits(task.test.texts))
    second = class_stream().tasks[1]
    for one in (learner, loaded):
        one.learn(second.train.texts, second.train.labels)
    assert distance(P.snapshot(loaded.model), P.snapshot(learner.model)) == 0.0


def test_nothing_changes_without_the_setting(tiny_bert: str) -> None:
    learner = make_learner(tiny_bert, make_method("mas"), class_stream())
    assert not learner.model.frozen
    learner.begin(class_stream().tasks[0])
    assert learner.model.prefix is None
    learner.model.train()
    assert all(module.training for module in learner.model.modules() if isinstance(module, nn.Dropout))


def test_an_export_has_the_adapters_of_the_top_layers(tiny_bert: str, tmp_path: Path) -> None:
    task = class_stream().tasks[0]
    learner = Learner.create(tiny_bert, "seq", settings=small(adapt_layers=1))
    learner.learn(task.train.texts, task.train.labels)
    learner.save(tmp_path / "state")
    export(tmp_path / "state", tmp_path / "export", model=tiny_bert)
    answers = TorchClassifier(tmp_path / "export", model=tiny_bert).answers(task.test.texts)
    expected = learner.predict_proba(task.test.texts).max(1)
    assert [one.probability for one in answers] == pytest.approx(expected.tolist(), abs=1e-5)
