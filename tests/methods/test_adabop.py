"""AdaBOP: a training worked out by hand, whose λ a layer gets, what is kept, what moves, and the search."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same_bits, class_stream, make_learner, small, weights_of
from test_mas import LR, distance
from torch import Tensor, nn

from holdfast import params as P
from holdfast.data.tasks import Split, Stream, Task
from holdfast.learner import Learner
from holdfast.methods import METHODS
from holdfast.methods.adabop import AdaBOP
from holdfast.params import Params

HELD = {"lr", "lam_s", "lam_l", "eps"}


def adabop_learner(
    path: str, stream: Stream, settings: Any = None, *, fixed: Any = (), **values: Any
) -> Learner:
    return make_learner(path, AdaBOP(**values), stream, settings, fixed=fixed)


def shaken(learner: Learner) -> Learner:
    """Adapters that start near the identity would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in P.trainable(learner.model).values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return learner


# ---- by hand ------------------------------------------------------------------------------------------


def loss_by_hand(learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
    """The relaxed balanced softmax: the count of a current label, 1 for one of an earlier task."""
    counts = learner._task.train.counts()
    prior = torch.tensor([float(counts.get(label, 1)) for label in learner.model.head.labels])
    return -(logits + prior.log()).log_softmax(1)[range(len(labels)), labels].mean()


def gradients_by_hand(learner: Learner) -> Params:
    """One sentence at a time, without dropout, where the weights are now."""
    weights = P.trainable(learner.model)
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    learner.model.eval()
    for i in range(len(learner.train)):
        batch = learner.train.collate([i])
        loss = loss_by_hand(learner, learner.model(batch).logits, batch.labels)
        for name, g in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            sums[name] += g / len(learner.train)
    learner.model.train()
    return sums


def moments_by_hand(model: nn.Module, batches: list[Any]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Of single sentences: the mean of x xᵀ of every layer that trains, and how many x there were."""
    seen: dict[str, list[np.ndarray]] = {}

    def note(name: str) -> Any:
        return lambda module, args: seen.setdefault(name, []).append(
            args[0].double().reshape(-1, module.in_features).numpy()
        )

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    handles = [module.register_forward_pre_hook(note(name)) for name, module in layers]
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for handle in handles:
        handle.remove()
    rows = {name: np.concatenate(found) for name, found in seen.items()}
    rows = {name: np.hstack([x, np.ones((len(x), 1))]) for name, x in rows.items()}
    return {name: x.T @ x / len(x) for name, x in rows.items()}, {name: len(x) for name, x in rows.items()}


def matrix(params: Params, place: str) -> np.ndarray:
    weight, bias = (params[f"{place}.{part}"].detach().double().numpy() for part in ("weight", "bias"))
    return np.hstack([weight, bias[:, None]])


def related_by_hand(new: np.ndarray, old: np.ndarray, scale: str) -> float:
    found = np.sqrt(((new @ old.T) ** 2).sum()) / np.sqrt((new**2).sum())
    return float(found / np.linalg.svd(old)[1][0] if scale == "free" else found)


def projector_by_hand(method: AdaBOP, moment: np.ndarray, lam: float) -> np.ndarray:
    sigma, vectors = np.linalg.eigh(moment)
    sigma = 1 + lam * method.mass * sigma.clip(0)
    if method.selection == "soft":
        return np.linalg.inv(np.eye(len(moment)) + lam * method.mass * moment)
    count = max(math.floor(len(moment) * method.fraction), 1)
    ours = sigma <= method.tau * sigma[0] if method.selection == "ratio" else np.arange(len(sigma)) < count
    found = vectors[:, ours] @ vectors[:, ours].T
    return found / np.sqrt((found**2).sum()) if method.normalize else found


def training_by_hand(learner: Learner, projectors: dict[str, np.ndarray], free: list[int]) -> Params:
    """One epoch of AdamW whose every step u becomes u P; leaves the model where it was."""
    model, start = learner.model, P.snapshot(learner.model)
    theta = {name: value.clone() for name, value in start.items()}
    moment, second = P.zeros(theta), P.zeros(theta)
    size = learner.settings.batch_size
    batches = learner.train.order(size, torch.Generator().manual_seed(learner.task_seed))
    model.eval()  # no dropout anyway
    for t, indices in enumerate(batches, start=1):
        batch = learner.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        loss = loss_by_hand(learner, P.predict(model, leaves, batch).logits, batch.labels)
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        rate = LR * min(1.0, t / len(batches))
        u = {}
        for name, g in gradients.items():
            moment[name] = 0.9 * moment[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            u[name] = -rate * moment[name] / (1 - 0.9**t) / ((second[name] / (1 - 0.999**t)).sqrt() + 1e-8)
        if not projectors:
            theta = {name: value + u[name] for name, value in theta.items()}
        for place, projector in projectors.items():
            step = matrix(u, place) @ projector
            if place == "head.linear":
                step[free] = matrix(u, place)[free]
            theta[f"{place}.weight"] = theta[f"{place}.weight"] + torch.from_numpy(step[:, :-1])
            theta[f"{place}.bias"] = theta[f"{place}.bias"] + torch.from_numpy(step[:, -1])
    P.restore(model, start)
    return theta


def dry(path: str, stream: Stream, **values: Any) -> Learner:
    """In double precision, without any dropout; a power of two for a mass is exact in any precision."""
    learner = adabop_learner(path, stream, small(epochs=1), fixed=HELD, lr=LR, mass=4096.0, **values)
    learner.model.double()
    learner.model.dropout.p = 0.0
    return shaken(learner)


WAYS = [
    {"selection": "ratio", "normalize": False},
    {"selection": "ratio", "normalize": True},
    {"selection": "ratio", "normalize": False, "scale": "free"},
    {"selection": "fraction", "fraction": 0.2, "normalize": False},
    {"selection": "fraction", "fraction": 0.01, "normalize": True},
    {"selection": "soft", "normalize": False},
    {"selection": "soft", "normalize": True},  # which changes nothing: its size says how loose it is
]


@pytest.fixture(scope="module")
def worked(tiny_bert_dry: str) -> tuple[dict[str, np.ndarray], Params, Params]:
    """Moments and gradients of the first task, gradients of the second: the same for all hyper-parameters."""
    torch.set_num_threads(1)
    stream = class_stream()
    one, two, _ = stream.tasks
    twin = dry(tiny_bert_dry, stream)
    twin.begin(one)
    past = gradients_by_hand(twin)
    for name in ("head.linear.weight", "head.linear.bias"):
        past[name] = torch.cat([past[name], torch.zeros_like(past[name])])  # rows to come
    learner = dry(tiny_bert_dry, stream)
    learner.learn(one)
    sentences = [learner.model.encode(one.train).collate([i]) for i in range(len(one.train))]
    moments, _ = moments_by_hand(learner.model, sentences)
    learner.begin(two)
    return moments, past, gradients_by_hand(learner)


@pytest.mark.parametrize("values", WAYS, ids=lambda values: "-".join(map(str, values.values())))
def test_a_training_by_hand(tiny_bert_dry, classes, worked, values):
    one, two, _ = classes.tasks
    moments, past, now = worked
    learner = dry(tiny_bert_dry, classes, **values)
    learner.learn(one)
    for place, moment in moments.items():
        assert np.allclose(learner.method.moments[place].numpy(), moment, rtol=1e-4, atol=1e-6), place
    # Stored in single precision: the null space of what is stored is what can be compared.
    moments = {place: value.double().numpy() for place, value in learner.method.moments.items()}
    learner.begin(two)
    assert learner.past_rows == [0, 1]
    scale = values.get("scale", "plain")
    related = {p: related_by_hand(matrix(now, p), matrix(past, p), scale) for p in moments}
    low, high = sorted(related.values())[3:5]
    method, choice = learner.method, {"lr": LR, "lam_s": 0.005, "lam_l": 0.3, "eps": (low + high) / 2}
    projectors = {
        place: projector_by_hand(method, moment, 0.005 if related[place] > choice["eps"] else 0.3)
        for place, moment in moments.items()
    }
    expected = training_by_hand(learner, projectors, free=[2, 3])

    trial = learner.trial(two, choice)
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 1e-3 * LR
    assert distance(trial.params, training_by_hand(learner, {}, [])) > 0.05 * LR, "the projection must show"
    if values["selection"] != "fraction":
        for lam in (0.005, 0.3):
            same = {p: projector_by_hand(method, moment, lam) for p, moment in moments.items()}
            assert distance(expected, training_by_hand(learner, same, [2, 3])) > 0.01 * LR, "so must both λ"


# ---- which λ ------------------------------------------------------------------------------------------


def single(scale: str, **values: Any) -> tuple[AdaBOP, Params]:
    """A method with two layers: one whose new gradient lies along the old one, one where it does not."""
    method = AdaBOP(lam_s=0.1, lam_l=10.0, eps=0.5, mass=1.0, tau=3.0, normalize=False, scale=scale, **values)
    old, along, across = torch.eye(3)[:1], torch.eye(3)[:1], torch.eye(3)[1:2]
    bias = torch.zeros(1)
    method.gradients = {f"{p}.{n}": v for p in ("a", "b") for n, v in (("weight", old), ("bias", bias))}
    method.moments = dict.fromkeys("ab", torch.diag(torch.tensor([0.0, 0.1, 1.0, 40.0])))
    now = {"a.weight": along, "a.bias": bias, "b.weight": across, "b.bias": bias}
    return method, now


@pytest.mark.parametrize("scale", ["plain", "free"])
def test_related_layers_get_the_loose_lambda(scale):
    method, now = single(scale)
    # σ = 1, 1.01, 1.1, 5 at λ = .1 and 1, 2, 11, 401 at λ = 10
    assert [round(float(value), 9) for value in method.projector("a", now).diagonal()] == [1, 1, 1, 0]
    assert [round(float(value), 9) for value in method.projector("b", now).diagonal()] == [1, 1, 0, 0]


def test_the_published_correlation_depends_on_the_old_gradients_scale():
    for scale, count in (("plain", 2), ("free", 3)):
        method, now = single(scale)
        method.gradients = {name: value / 100 for name, value in method.gradients.items()}
        assert round(float(method.projector("a", now).trace())) == count


def test_a_layer_at_the_threshold_is_not_related():
    method, now = single("free")
    method.eps = 1.0
    assert round(float(method.projector("a", now).trace())) == 2


def test_a_bias_takes_part_in_the_correlation():
    method, now = single("free")
    now["b.bias"] = torch.ones(1)
    method.gradients["b.weight"], method.gradients["b.bias"] = torch.zeros(1, 3), torch.ones(1)
    assert round(float(method.projector("b", now).trace())) == 3


@pytest.mark.parametrize("selection", ["ratio", "fraction", "soft"])
def test_layers_without_gradients_or_inputs_give_no_nan(selection):
    method, now = single("free", selection=selection)
    method.normalize = True
    now = P.zeros(now)
    method.moments["b"] = torch.zeros(4, 4)
    assert all(torch.isfinite(method.projector(place, now)).all() for place in "ab")


def test_a_normalised_projector_has_norm_one():
    for selection in ("ratio", "fraction"):
        method, now = single("plain", selection=selection)
        method.normalize = True
        assert float(torch.linalg.norm(method.projector("a", now))) == pytest.approx(1.0)
    method, now = single("plain", selection="soft")
    method.normalize = True
    assert float(torch.linalg.norm(method.projector("a", now))) > 1.5, "a soft one is left alone"


# ---- switched off -------------------------------------------------------------------------------------


def test_the_first_task_is_seq_bit_for_bit(tiny_bert, classes):
    seq = make_learner(tiny_bert, METHODS["seq"](), classes)
    own = adabop_learner(tiny_bert, classes)
    for learner in (seq, own):
        learner.learn(classes.tasks[0])
    assert own.method.moments
    assert_same_bits(weights_of(seq), weights_of(own))


@pytest.mark.parametrize("selection", ["ratio", "fraction"])
def test_strengths_of_zero_are_seq_bit_for_bit(tiny_bert, classes, selection):
    values = {"lam_s": 0.0, "lam_l": 0.0, "selection": selection}
    settings = small(epochs=2)
    seq = make_learner(tiny_bert, METHODS["seq"](), classes, settings)
    own = adabop_learner(tiny_bert, classes, settings, fixed=HELD - {"lr"}, **values)
    held = adabop_learner(tiny_bert, classes, settings, fixed=HELD - {"lr"}, selection=selection)
    for task in classes.tasks[:2]:
        for learner in (seq, own, held):
            learner.learn(task)
    assert_same_bits(weights_of(seq), weights_of(own))
    assert distance(weights_of(seq), weights_of(held)) > 1e-3


# ---- what survives a task -----------------------------------------------------------------------------


def assert_same_state(left: Learner, right: Learner) -> None:
    for group in ("moments", "tokens", "gradients"):
        assert_same_bits(left.method.state_dict()[group], right.method.state_dict()[group])


def test_the_gradients_are_those_of_the_tasks_start(tiny_bert, classes):
    """Not of its end, and without the dropout that the training has."""
    one, two, _ = classes.tasks
    settings = small(batch_size=7)  # of 24 sentences: the last batch is shorter
    learner = shaken(adabop_learner(tiny_bert, classes, settings, fixed=HELD, lr=1e-2))
    for k, task in enumerate((one, two)):
        # A twin goes as far as the start of the task.
        twin = shaken(adabop_learner(tiny_bert, classes, settings, fixed=HELD, lr=1e-2))
        for earlier in classes.tasks[:k]:
            twin.learn(earlier)
        twin.begin(task)
        expected = gradients_by_hand(twin)
        learner.learn(task)
        found = learner.method.gradients
        assert {n: g.shape for n, g in found.items()} == {n: g.shape for n, g in expected.items()}
        for name, gradient in expected.items():
            largest = float(gradient.abs().max())
            assert float((found[name] - gradient).abs().max()) < 1e-4 * largest, name
    assert distance(weights_of(learner), weights_of(twin)) > 1e-3, "start and end are not the same"


def test_a_rerun_finds_the_same_state(tiny_bert, classes, tmp_path, monkeypatch):
    """From trial files alone: nothing is trained again, yet gradients and moments are there."""
    import holdfast.learner as module

    settings = small(rates=(1e-2, 3e-3), epochs=1)
    learners, lessons = [], []
    for attempt in range(2):
        learner = make_learner(tiny_bert, AdaBOP(), classes, settings, workspace=tmp_path)
        if attempt:
            monkeypatch.setattr(module, "fit", None)
        lessons.append([learner.learn(task) for task in classes.tasks[:2]])
        learners.append(learner)
    assert_same_bits(*map(weights_of, learners))
    assert_same_state(*learners)
    assert learners[0].method.hparams() == learners[1].method.hparams()
    for first, again in zip(*lessons, strict=True):
        assert first.chosen_passes == again.chosen_passes
        assert first.search_passes == again.search_passes


def uneven(stream: Stream) -> list[Task]:
    """Tasks of 24, 10 and 17 sentences."""
    return [
        replace(task, train=Split(task.train.texts[:n], task.train.labels[:n]))
        for task, n in zip(stream.tasks, (24, 10, 17), strict=True)
    ]


@pytest.mark.parametrize("stream", ["classes", "domains"])
def test_moments_are_pooled_by_tokens(tiny_bert, stream, request):
    """While the model stands still they are the moments of all sentences at once."""
    stream = request.getfixturevalue(stream)
    tasks = uneven(stream)
    learner = shaken(adabop_learner(tiny_bert, stream, small(rates=(0.0,), epochs=1), fixed=HELD, lr=0.0))
    for task in tasks:
        learner.learn(task)
    texts = [(text, "") for task in tasks for text in task.train.texts]
    examples = learner.model.encode(Split.of(texts))
    assert len(examples) == 51
    sentences = [examples.collate([i]) for i in range(len(examples))]
    moments, counts = moments_by_hand(learner.model, sentences)
    method = learner.method
    assert moments.keys() == method.moments.keys() == method.tokens.keys()
    assert len(set(counts.values())) == 2, "tokens, and sentences for the head"
    for place, moment in moments.items():
        assert int(method.tokens[place]) == counts[place]
        assert np.abs(method.moments[place].numpy() - moment).max() < 1e-5 * np.abs(moment).max(), place


def test_moments_are_taken_of_the_finished_model(tiny_bert, classes):
    learner = shaken(adabop_learner(tiny_bert, classes, fixed=HELD, lr=1e-2))
    task = classes.tasks[0]
    examples = learner.model.encode(task.train)
    sentences = [examples.collate([i]) for i in range(len(examples))]
    before, _ = moments_by_hand(learner.model, sentences)
    learner.learn(task)
    after, _ = moments_by_hand(learner.model, sentences)
    for place, found in learner.method.moments.items():
        assert np.abs(found.numpy() - after[place]).max() < 1e-5 * np.abs(after[place]).max(), place
    place = "head.linear"
    assert np.abs(before[place] - after[place]).max() > 1e-3


def test_the_state_grows_with_rows_only_where_it_must(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, small(epochs=1), fixed=HELD, lr=1e-2)
    sizes = []
    for k, task in enumerate(classes):
        learner.learn(task)
        method = learner.method
        sizes.append({place: tuple(moment.shape) for place, moment in method.moments.items()})
        assert method.moments["head.linear"].shape == (33, 33)
        assert {tuple(count.shape) for count in method.tokens.values()} == {()}
        assert method.gradients["head.linear.weight"].shape == (2 * k + 2, 32)
        assert all(method.gradients[n].shape == w.shape for n, w in P.trainable(learner.model).items())
        assert set(method.gradients) == set(P.trainable(learner.model))
    assert sizes[0] == sizes[1] == sizes[2]
    assert set(sizes[0].values()) == {(33, 33), (65, 65)}


def test_old_gradients_of_new_rows_are_zero(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, small(epochs=1), fixed=HELD, lr=1e-2)
    learner.learn(classes.tasks[0])
    learner.begin(classes.tasks[1])
    assert (learner.method.gradients["head.linear.weight"][2:] == 0).all()
    assert (learner.method.gradients["head.linear.weight"][:2] != 0).all()


# ---- what moves ---------------------------------------------------------------------------------------


def second_task(
    path: str, stream: Stream, name: str = "adabop", **values: Any
) -> tuple[Learner, Params, Any]:
    """A learner that has learnt the first task and tried the second: weights before and after."""
    learner = make_learner(path, METHODS[name](**values), stream, small(), fixed=HELD & set(values) | {"lr"})
    learner.method.lr = 1e-2
    learner.learn(stream.tasks[0])
    learner.begin(stream.tasks[1])
    start = P.snapshot(learner.model)
    trial = learner.trial(stream.tasks[1], {"lr": 1e-2})
    assert trial.fit["best_epoch"] > 0
    return learner, start, trial


STRICT = {"lam_s": 1e4, "lam_l": 1e4, "normalize": False}


def on_old_inputs(learner: Learner, start: Params, end: Params) -> list[float]:
    """δ F δᵀ of every row of the head: the mean squared change of its logit on the first task's inputs."""
    step = matrix(end, "head.linear") - matrix(start, "head.linear")
    return [float(row @ learner.method.moments["head.linear"].numpy() @ row) for row in step]


def test_rows_of_new_labels_are_free(tiny_bert, classes):
    learner, start, trial = second_task(tiny_bert, classes, **STRICT)
    assert learner.method.free == {"head.linear": [2, 3]}
    changes = on_old_inputs(learner, start, trial.params)
    assert min(changes[2:]) > 1e4 * max(changes[:2])
    assert (trial.params["head.linear.weight"] != start["head.linear.weight"]).all(), "held rows move too"


def test_no_row_is_free_where_labels_are_shared(tiny_bert, domains):
    learner, start, trial = second_task(tiny_bert, domains, **STRICT)
    assert learner.method.free == {"head.linear": []}
    assert learner.past_rows == [0, 1]
    assert max(on_old_inputs(learner, start, trial.params)) < 1e-6
    assert distance(trial.params, start) > 1e-3


def test_unseen_rows_of_a_preallocated_head_are_free(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, small(head="preallocated", epochs=1), fixed=HELD, lr=1e-2)
    for task, free in zip(classes, ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [4, 5]), strict=True):
        learner.learn(task)
        rows = [classes.labels.index(label) for label in learner.model.head.labels]
        assert [rows[row] for row in learner.method.free["head.linear"]] == free


def test_norms_do_not_move_after_the_first_task(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, fixed=HELD, lr=1e-2)
    norms = [name for name in P.trainable(learner.model) if "LayerNorm" in name]
    assert len(norms) == 8
    before = weights_of(learner)
    learner.learn(classes.tasks[0])
    first = weights_of(learner)
    assert all((first[name] != before[name]).any() for name in norms)
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    second = weights_of(learner)
    assert all(torch.equal(second[name], first[name]) for name in norms)
    others = [name for name in P.trainable(learner.model) if name not in norms and "head" not in name]
    assert all((second[name] != first[name]).any() for name in others), "everything else does"


@pytest.mark.parametrize("selection", ["ratio", "soft"])
def test_old_answers_change_far_less_than_under_seq(tiny_bert_dry, classes, selection):
    """On what was the first task's: the logits of its labels, on its sentences."""
    texts = classes.tasks[0].train.texts
    changes = {}
    for name, values in (("seq", {}), ("adabop", STRICT | {"selection": selection})):
        learner, start, trial = second_task(tiny_bert_dry, classes, name, **values)
        with P.using(learner.model, start):
            before = learner.model.logits(texts)[:, :2]
        with P.using(learner.model, trial.params):
            changes[name] = float((learner.model.logits(texts)[:, :2] - before).abs().mean())
    assert 0 < changes["adabop"] < 0.05 * changes["seq"]


# ---- the search ---------------------------------------------------------------------------------------

PAPER = [
    {"lam_s": small_, "lam_l": large, "eps": eps}
    for small_, large in ((0.1, 0.3), (0.03, 0.08), (0.005, 0.01))
    for eps in (0.002, 0.004)
]


def choices(path: str, stream: Stream, settings: Any, *, fixed: Any = (), **values: Any) -> list[Any]:
    """What is tried for each of the first two tasks."""
    learner = adabop_learner(path, stream, settings, fixed=fixed, **values)
    return [[trial.choice for trial in learner.learn(task).trials] for task in stream.tasks[:2]]


def test_the_grid_after_the_rates(tiny_bert, classes):
    first, second = choices(tiny_bert, classes, small(rates=(1e-2, 1e-3), epochs=1))
    assert first == [{"lr": 1e-2}, {"lr": 1e-3}], "there is nothing to hold on to yet"
    assert second[:2] == [{"lr": lr} | PAPER[0] for lr in (1e-2, 1e-3)]
    best = second[2]["lr"]
    assert second[2:] == [{"lr": best} | point for point in PAPER[1:]]


def test_the_grid_for_every_rate(tiny_bert, classes):
    first, second = choices(tiny_bert, classes, small(rates=(1e-2, 1e-3), epochs=1, grids="product"))
    assert len(first) == 2
    assert len(second) == 12
    assert all({"lr": lr} | point in second for lr in (1e-2, 1e-3) for point in PAPER)


def test_with_a_fraction_only_the_rate_is_searched(tiny_bert, classes):
    settings = small(rates=(1e-2, 1e-3), epochs=1, grids="product")
    assert choices(tiny_bert, classes, settings, selection="fraction") == [[{"lr": 1e-2}, {"lr": 1e-3}]] * 2


def test_a_fixed_strength_is_honoured(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, small(epochs=1), fixed={"lam_s"}, lam_s=0.7)
    learner.learn(classes.tasks[0])
    tried: list[tuple[float, float]] = []
    original = learner.method.before_task

    def watched(own: Learner, task: Task) -> None:
        tried.append((own.method.lam_s, own.method.lam_l))
        original(own, task)

    learner.method.before_task = watched
    lesson = learner.learn(classes.tasks[1])
    points = [{n: v for n, v in point.items() if n != "lam_s"} for point in PAPER]
    assert [trial.choice for trial in lesson.trials] == [{"lr": 1e-2} | point for point in points]
    assert tried == [(0.7, point["lam_l"]) for point in points]
    assert learner.method.lam_s == 0.7


def test_fixed_strengths_leave_the_threshold(tiny_bert, classes):
    _, second = choices(tiny_bert, classes, small(epochs=1), fixed={"lam_s", "lam_l"})
    assert second == [{"lr": 1e-2, "eps": eps} for eps in (0.002, 0.004)]
    _, second = choices(tiny_bert, classes, small(epochs=1), fixed={"lam_s", "lam_l", "eps"})
    assert second == [{"lr": 1e-2}]


def test_the_best_point_is_adopted(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    best = max(trial.score for trial in lesson.trials)
    chosen = next(trial for trial in lesson.trials if trial.score == best)
    assert lesson.decision.trial is chosen
    assert {name: getattr(learner.method, name) for name in chosen.choice} == chosen.choice


def test_the_gradients_are_measured_once_for_all_trials(tiny_bert, classes, monkeypatch):
    from holdfast import importance

    calls = []
    original = importance.mean_gradients
    monkeypatch.setattr(importance, "mean_gradients", lambda *a, **k: calls.append(1) or original(*a, **k))
    settings = small(rates=(1e-2, 1e-3), epochs=1, grids="product")
    learner = adabop_learner(tiny_bert, classes, settings)
    for k, task in enumerate(classes.tasks[:2]):
        learner.learn(task)
        assert len(calls) == k + 1


@pytest.mark.parametrize("scenario", ["class-incremental", "domain-incremental"])
def test_an_inert_lambda_is_said_so(scenario):
    def inert(method: AdaBOP) -> list[str]:
        return [text for text in method.cautions(scenario) if "lam_s" in text and "no effect" in text]

    assert len(inert(AdaBOP(selection="fraction"))) == 1
    assert not inert(AdaBOP())
    assert not inert(AdaBOP(selection="soft"))
    others = set(AdaBOP().cautions(scenario))
    assert others <= set(AdaBOP(selection="fraction").cautions(scenario)), "beside what is said anyway"
