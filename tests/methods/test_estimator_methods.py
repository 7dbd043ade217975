"""EWC, SI, RWalk, and LA and its merge over any estimator: whole trainings worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, domain_stream, make_learner, small, weights_of
from test_la import naive_alpha, naive_importance
from test_mas import LR, distance, dry_learner

from holdfast import equations, estimators
from holdfast import params as P
from holdfast.data.tasks import Stream
from holdfast.estimators import ESTIMATORS, Training
from holdfast.learner import Learner
from holdfast.lesson import Lesson
from holdfast.methods import METHODS

pytestmark = pytest.mark.slow  # together they take half a minute

POOLINGS = ["mean", "sum", "max", "ema", "half"]
SHORT = {"epochs": 1, "batch_size": 4, "rates": (3e-3,)}


def few(n: int = 5) -> Stream:
    """Few sentences; validation is on the same ones, so that a short training is kept."""
    stream = domain_stream({"train": n, "valid": 1, "test": 1})
    return replace(stream, tasks=tuple(replace(task, valid=task.train) for task in stream))


def kept(lesson: Lesson) -> bool:
    """Whether the chosen training got anywhere; if not, there is nothing to compare."""
    return lesson.decision.trial.fit["best_epoch"] > 0


Step = dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # task gradient, before, after


@dataclass
class Walk:
    """A training by hand, step by step."""

    start: P.Params
    end: P.Params
    steps: list[Step]


def naive_walk(learner: Learner, alpha: P.Params, lam: float) -> Walk:
    """One epoch of AdamW on task loss + (lam/2) Σ alpha (θ - θ0)², noting the gradient of the task loss."""
    model = learner.model
    theta = P.snapshot(model)
    anchor, steps = P.snapshot(model), []
    first, second = P.zeros(theta), P.zeros(theta)
    counts = learner._task.train.counts()
    weight_of = torch.tensor([counts.total() / (len(counts) * counts[label]) for label in model.head.labels])
    batches = learner.train.order(
        learner.settings.batch_size, torch.Generator().manual_seed(learner.task_seed)
    )
    model.eval()
    for t, indices in enumerate(batches, start=1):
        batch = learner.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        each = -P.predict(model, leaves, batch).logits.float().log_softmax(1)[range(len(batch)), batch.labels]
        weights = weight_of[batch.labels]
        loss = (weights * each).sum() / weights.sum()
        step: Step = {}
        for name, g in zip(theta, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            total = g + lam * alpha[name] * (theta[name] - anchor[name])
            first[name] = 0.9 * first[name] + 0.1 * total
            second[name] = 0.999 * second[name] + 0.001 * total * total
            change = (first[name] / (1 - 0.9**t)) / ((second[name] / (1 - 0.999**t)).sqrt() + 1e-8)
            step[name] = (g, theta[name], theta[name] - LR * min(1.0, t / len(batches)) * change)
        theta = {name: after for name, (*_, after) in step.items()}
        steps.append(step)
    return Walk(anchor, theta, steps)


def naive_fisher(learner: Learner, theta: P.Params, labels: str) -> P.Params:
    """The mean over single samples, and the mean over labels, of squared gradients of log p."""
    model, data, sums = learner.model, learner.train, P.zeros(theta)
    model.eval()
    draw = torch.Generator().manual_seed(learner.task_seed)
    for indices in data.order(learner.settings.batch_size):
        batch = data.collate(indices)
        assert len(batch.by_length()) == 1, "draws would be made in another order"
        p = P.predict(model, theta, batch).logits.softmax(1)
        drawn = torch.multinomial(p, 1, generator=draw)[:, 0].tolist()
        for row, i in enumerate(indices):
            picks = {
                "true": [(data.labels[i], 1.0)],
                "sample": [(drawn[row], 1.0)],
                "expected": [(c, float(p[row, c])) for c in range(p.shape[1])],
            }
            for label, share in picks[labels]:
                leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
                log_p = P.predict(model, leaves, data.collate([i])).logits.log_softmax(1)[0, label]
                for name, g in zip(leaves, torch.autograd.grad(log_p, list(leaves.values())), strict=True):
                    sums[name] += share * g * g / len(data)
    return sums


def naive_si(walk: Walk, damping: float = 0.1) -> P.Params:
    found = {}
    for name, end in walk.end.items():
        saved = sum(-g * (after - before) for g, before, after in (step[name] for step in walk.steps))
        found[name] = torch.where(saved > 0, saved, 0.0) / ((end - walk.start[name]) ** 2 + damping)
    return found


def naive_walked(
    walk: Walk, interval: int, fisher: P.Params | None = None, damping: float = 1e-3
) -> tuple[P.Params, P.Params]:
    """RWalk's two parts."""
    fishers, scores = {}, {}
    for name in walk.end:
        steps = [step[name] for step in walk.steps]
        f = steps[0][0] ** 2 if fisher is None else fisher[name]
        score = torch.zeros_like(f)
        for begin in range(0, len(steps), interval):
            part = steps[begin : begin + interval]
            saved = sum(-g * (after - before) for g, before, after in part)
            gain = saved / (f / 2 * (part[-1][2] - part[0][1]) ** 2 + damping)
            score = score + torch.where(gain > 0, gain, 0.0)
            f = 0.9 * sum(g * g for g, *_ in part) / len(part) + 0.1 * f
        fishers[name], scores[name] = f, score
    return fishers, scores


def naive_sum(fisher: P.Params, score: P.Params) -> P.Params:
    """Each part between its least and its largest entry anywhere, then added."""
    found = P.zeros(fisher)
    for part in (fisher, score):
        everything = torch.cat([value.flatten() for value in part.values()])
        low, high = everything.min(), everything.max()
        for name, value in part.items():
            found[name] = found[name] + (value - low) / (high - low)
    return found


def assert_close(found: P.Params, expected: P.Params, share: float = 2e-3) -> None:
    """Each tensor to within a share of its own largest entry."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        largest = float(value.abs().max())
        assert largest > 0, f"the oracle of {name} is trivial"
        assert float((found[name] - value).abs().max()) <= share * largest, name


def made_up(learner: Learner, seed: int) -> P.Params:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(value.shape, generator=generator, dtype=value.dtype)
        for name, value in P.snapshot(learner.model).items()
    }


# ---- one training by hand, and the importance after it ------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ewc", {"labels": "true"}),
        ("ewc", {"labels": "sample"}),
        ("ewc", {"labels": "expected"}),
        ("si", {}),
        ("si", {"damping": 1e-6}),
        ("rwalk", {"interval": 1}),
        ("rwalk", {"interval": 2, "damping": 1e-8}),
        ("rwalk", {}),
    ],
    ids=str,
)
def test_a_second_task_by_hand(tiny_bert_dry, name, options):
    """Every step, its trace, what that makes of the importance, and its pooling with the past."""
    stream, lam = few(), 20.0
    learner = dry_learner(
        tiny_bert_dry, METHODS[name](lr=LR, lam=lam, **options), stream, batch_size=2, min_delta=0.0
    )
    learner.fixed = frozenset({"lr", "lam"})
    method = learner.method
    past = {key: value.clone() for key, value in method.alpha.items()}
    walk = naive_walk(learner, past, lam)
    assert len(walk.steps) == 5, "one interval of two steps stays open"
    if name == "ewc":
        new = naive_fisher(learner, walk.end, options["labels"])
        expected = {key: (past[key] + value) / 2 for key, value in new.items()}
    elif name == "si":
        new = naive_si(walk, method.damping)
        expected = {key: past[key] + value for key, value in new.items()}
    else:
        method.fisher, method.score = (
            {key: scale * value for key, value in made_up(learner, seed).items()}
            for seed, scale in ((1, 0.01), (2, 0.1))
        )
        fisher, score = naive_walked(walk, method.interval, method.fisher, method.damping)
        score = {key: (method.score[key] + value) / 2 for key, value in score.items()}
        expected = naive_sum(fisher, score)
    lesson = learner.learn(stream.tasks[1])
    trial = lesson.decision.trial
    assert trial.choice == {"lr": LR, "lam": lam}
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(P.snapshot(learner.model), walk.end) < 2e-3 * LR
    assert_close(method.alpha, expected)
    assert method.tasks_pooled == 2
    if name == "rwalk":
        assert_close(method.fisher, fisher)
        assert_close(method.score, score)
    else:  # the past, made up, is larger than what is new: look at that alone
        share = 2 if name == "ewc" else 1
        assert_close({key: share * value - past[key] for key, value in method.alpha.items()}, new)
    P.restore(learner.model, walk.start)
    free = naive_walk(learner, past, 0.0)
    assert distance(free.end, walk.end) > 0.05 * LR, "the penalty must show"


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_a_first_task_by_hand(tiny_bert_dry, name):
    """Nothing is pooled yet: the importance is the task's own."""
    stream = few()
    learner = make_learner(
        tiny_bert_dry, METHODS[name](lr=LR), stream, small(epochs=1, batch_size=4), fixed={"lr"}
    )
    learner.model.double()
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    walk = naive_walk(learner, P.zeros(learner.start), 0.0)
    expected = {
        "ewc": lambda: naive_fisher(learner, walk.end, "true"),
        "si": lambda: naive_si(walk),
        "rwalk": lambda: naive_sum(*naive_walked(walk, 10)),
    }[name]()
    lesson = learner.learn(stream.tasks[0])
    assert lesson.decision.trial.fit["best_epoch"] == 1
    assert_close(learner.method.alpha, expected)


# ---- pooling over real tasks --------------------------------------------------------------------------


def pooled(measured: list[P.Params], how: str, keep: float) -> P.Params:
    """All tasks' importances as one, entry by entry."""
    found = {}
    for name in measured[0]:
        tasks = torch.stack([one[name] for one in measured])
        k = len(tasks)
        shares = {
            "mean": [1 / k] * k,
            "sum": [1.0] * k,
            "ema": [(1 - keep) * keep ** (k - 1 - i) for i in range(k)],
            "half": [0.5 ** (k - 1)] + [0.5 ** (k - i) for i in range(1, k)],
        }
        if how == "max":
            found[name] = tasks.max(0).values
        else:
            found[name] = sum(share * task for share, task in zip(shares[how], tasks, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", POOLINGS)
@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_pooling_over_three_tasks(one_layer, name, how, monkeypatch):
    """RWalk pools its scores; the others the importances themselves."""
    stream = few()
    method = METHODS[name](pooling=how, keep=0.7)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
    measured: list[P.Params] = []
    if name == "rwalk":
        original = estimators.RWalk.parts

        def parts(self: Any, model: Any, trace: Any) -> Any:
            fisher, score = original(self, model, trace)
            measured.append({key: value.clone() for key, value in score.items()})
            return fisher, score

        monkeypatch.setattr(estimators.RWalk, "parts", parts)
    else:
        measure = method.measure
        method.measure = lambda own: measured.append(measure(own)) or dict(measured[-1])
    for number, task in enumerate(stream, start=1):
        assert kept(learner.learn(task))
        assert len(measured) == method.tasks_pooled == number
        found = method.score if name == "rwalk" else method.alpha
        expected = pooled(measured, how, 0.7)
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=1e-5, atol=1e-9 * float(value.max())), key
        if name == "rwalk":
            assert_close(method.alpha, naive_sum(method.fisher, method.score), share=1e-5)
    others = [pooled(measured, other, 0.7) for other in POOLINGS if other != how]
    key = "head.linear.weight"
    assert not any(torch.allclose(expected[key], other[key], rtol=1e-3, atol=0) for other in others)


# ---- RWalk over tasks ---------------------------------------------------------------------------------


def test_the_running_fisher_runs_on(one_layer, classes, monkeypatch):
    """One interval per task: F_k = 0.9 mean g² + 0.1 F_{k-1}; rows of new labels begin at 0."""
    method = METHODS["rwalk"](interval=1000, lam=1.0)
    learner = make_learner(one_layer, method, classes, small(**SHORT), fixed={"lam"})
    squares: dict[int, dict[str, list[torch.Tensor]]] = {}
    original = estimators.RWalk.step

    def step(self: Any, trace: Any, name: str, gradient: torch.Tensor, *way: Any) -> None:
        squares.setdefault(id(trace), {}).setdefault(name, []).append(gradient.square())
        alive.append(trace)  # alive, so that no other has its id
        original(self, trace, name, gradient, *way)

    monkeypatch.setattr(estimators.RWalk, "step", step)
    alive: list[Any] = []
    learner.learn(classes.tasks[0])
    [first] = squares.values()
    for name, seen in first.items():
        expected = 0.9 * torch.stack(seen).mean(0) + 0.1 * seen[0]
        assert torch.allclose(method.fisher[name], expected, rtol=1e-5), name
    before = method.state_dict()["fisher"]
    squares.clear()
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] == 1
    *_, chosen = squares.values()
    assert len(squares) == 2
    for name, seen in chosen.items():
        past = torch.zeros_like(method.fisher[name])
        past[: len(before[name])] = before[name]
        expected = 0.9 * torch.stack(seen).mean(0) + 0.1 * past
        assert torch.allclose(method.fisher[name], expected, rtol=1e-5, atol=1e-20), name


def test_the_score_of_a_task_begins_at_zero_and_is_averaged(one_layer):
    stream, method = few(), METHODS["rwalk"](lam=1.0)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
    learner.learn(stream.tasks[0])
    first = method.state_dict()["score"]
    learner.begin(stream.tasks[1])
    method.before_task(learner, stream.tasks[1])
    assert set(method.trace) == {f"fisher/{name}" for name in method.fisher}
    learner._put_back()
    trial = learner.trial(stream.tasks[1], {"lr": 3e-3, "lam": 1.0})
    assert trial.fit["best_epoch"] == 1
    trace = trial.read()["trace"]
    learner.learn(stream.tasks[1])
    with P.using(learner.model, trial.params):
        _, own = method.estimator().parts(learner.model, trace)
    for name, value in method.score.items():
        assert torch.allclose(value, (first[name] + own[name]) / 2, rtol=1e-6), name


# ---- the trace ----------------------------------------------------------------------------------------

TRACED = [name for name in METHODS if "trace" in METHODS[name].state]


def test_who_keeps_a_trace():
    assert {"mas", "ewc", "si", "rwalk", "la", "la-merge"} <= set(TRACED)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("si", {"lam": 0.5}),
        ("rwalk", {"lam": 0.5}),
        ("la", {"lam": 0.5, "down": 0.5, "up": 0.5, "importance": "si"}),
        ("la-merge", {"importance": "rwalk"}),
    ],
    ids=str,
)
def test_the_trace_is_empty_between_tasks(one_layer, name, values):
    stream = few()
    learner = make_learner(one_layer, METHODS[name](**values), stream, small(**SHORT), fixed=set(values))
    for task in stream.tasks[:2]:
        lesson = learner.learn(task)
        assert lesson.decision.trial.read()["trace"], "the training was watched"
        assert learner.method.trace == {}
        assert learner.state()[0]["trace"] == {}


@pytest.mark.parametrize("name", ["si", "rwalk"])
@pytest.mark.parametrize("best", [0, 2])
def test_the_trace_goes_back_to_the_best_epoch(one_layer, name, best, monkeypatch):
    """Bit for bit what a training of so many epochs leaves; the validation losses are made up."""
    stream = few()
    learner = make_learner(one_layer, METHODS[name](), stream, small(epochs=4, batch_size=4, patience=4))
    learner.learn(stream.tasks[0])
    learner.begin(stream.tasks[1])
    ends: list[P.Params] = []
    load = METHODS[name].load_state_dict

    def watched(self: Any, state: dict[str, Any]) -> None:
        ends.append(self.trace)
        load(self, state)

    def trained(losses: list[float]) -> Any:
        learner.settings = small(epochs=len(losses) - 1, batch_size=4, patience=4)
        made_up = iter(losses)
        monkeypatch.setattr("holdfast.fit._valid_loss", lambda *args: next(made_up))
        return learner.trial(stream.tasks[1], {"lr": 1e-2, "lam": 5.0})

    monkeypatch.setattr(METHODS[name], "load_state_dict", watched)
    long = trained([1.0, 1.1, 1.2, 1.3, 1.4] if best == 0 else [1.0, 0.9, 0.5, 0.7, 0.6])
    assert (long.fit["best_epoch"], long.fit["epochs"]) == (best, 4)
    last, found, weights = max(ends, key=len), long.read()["trace"], long.params
    assert any(f"path/{key}" in last or f"score/{key}" in last for key in learner.start)
    assert last.keys() != found.keys() or any(not torch.equal(last[key], found[key]) for key in found)
    if best == 0:
        assert_same_bits(weights, learner.start)
        fisher = {f"fisher/{key}": value for key, value in getattr(learner.method, "fisher", {}).items()}
        assert_same_bits(found, fisher)
    else:
        learner._begin_anew()
        learner.drop_trials()
        short = trained([1.0, 0.9, 0.5])
        assert (short.fit["best_epoch"], short.fit["epochs"]) == (2, 2)
        assert_same_bits(short.params, weights)
        assert_same_bits(short.read()["trace"], found)


# ---- the forms of the penalty -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_both_forms_of_the_penalty_hold_back(one_layer, name):
    stream, moved = few(), {}
    for penalty in ("loss", "proximal"):
        method = METHODS[name](penalty=penalty)
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
        learner.learn(stream.tasks[0])
        method.lam = 1e3 / max(float(value.max()) for value in method.alpha.values())
        alpha, lam = method.state_dict()["alpha"], method.lam
        lesson = learner.learn(stream.tasks[1])
        assert [trial.choice["lam"] for trial in lesson.trials] == [0.0, lam]
        assert all(trial.fit["best_epoch"] for trial in lesson.trials)
        assert not any(trial.fit["diverged"] for trial in lesson.trials)
        assert all(torch.isfinite(value).all() for value in weights_of(learner).values())
        assert all(torch.isfinite(value).all() for value in method.alpha.values())
        free, held = (
            sum(float((a * (trial.params[key] - learner.start[key]) ** 2).sum()) for key, a in alpha.items())
            for trial in lesson.trials
        )
        moved[penalty] = held / free
    assert moved["loss"] < 0.9
    assert moved["proximal"] < 0.9
    assert moved["loss"] != moved["proximal"]


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_lambda_infinity_holds_every_entry_the_past_needs(one_layer, classes, name, penalty):
    learner = make_learner(one_layer, METHODS[name](penalty=penalty), classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    learner.begin(classes.tasks[1])
    start, alpha = P.snapshot(learner.model), learner.method.state_dict()["alpha"]
    trial = learner.trial(classes.tasks[1], {"lr": 1e-2, "lam": math.inf})
    assert trial.fit["best_epoch"] > 0
    held = {key: value > 0 for key, value in alpha.items()}
    assert sum(int(one.sum()) for one in held.values()) > 1000
    for key, value in trial.params.items():
        assert torch.equal(value[held[key]], start[key][held[key]]), key
    assert (trial.params["head.linear.weight"][2:] != start["head.linear.weight"][2:]).all(), "new rows train"


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_lambda_zero_is_seq_bit_for_bit_in_the_proximal_form_too(one_layer, name):
    stream, found = few(), []
    for method in (METHODS["seq"](), METHODS[name](penalty="proximal")):
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
        for task in stream.tasks[:2]:
            assert kept(learner.learn(task))
        found.append(weights_of(learner))
    assert_same_bits(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ewc", {}),
        ("si", {"lam": 1e6}),
        ("rwalk", {"lam": 1e6, "penalty": "proximal"}),
        ("si", {"lam": math.inf}),
        ("la", {"lam": 1e6, "down": 0.5, "up": 0.5}),
        ("la-merge", {"merge": 1.0}),
    ],
    ids=str,
)
def test_importance_that_is_zero_everywhere(one_layer, name, values):
    """No scale to divide by, nothing to hold, no share to give: the second task is learnt as SEQ would."""
    stream, found = few(), []
    for method in (METHODS["seq"](), METHODS[name](**values)):
        settings = small(**SHORT, lam_trials=1)
        learner = make_learner(one_layer, method, stream, settings, fixed=set(values))
        learner.learn(stream.tasks[0])
        for value in getattr(method, "alpha", {}).values():
            value.zero_()
        lesson = learner.learn(stream.tasks[1])
        assert kept(lesson)
        assert not any(trial.fit["diverged"] for trial in lesson.trials)
        found.append(weights_of(learner))
    for key, value in found[0].items():
        assert torch.allclose(found[1][key], value, rtol=1e-5, atol=1e-6), key
    assert all(torch.isfinite(value).all() for value in method.alpha.values())


# ---- LA over any estimator ----------------------------------------------------------------------------


def naive_of(learner: Learner, importance: str, walk: Walk) -> P.Params:
    return {
        "mas": lambda: naive_importance(learner, walk.end),
        "fisher": lambda: naive_fisher(learner, walk.end, "true"),
        "si": lambda: naive_si(walk),
        "rwalk": lambda: naive_sum(*naive_walked(walk, 10)),
    }[importance]()


@pytest.mark.parametrize("importance", ESTIMATORS)
def test_la_by_hand(tiny_bert_dry, importance):
    """Look-ahead, its own importance, α', the main training, and the importance of that one alone."""
    stream = few()
    lam, lam_max, down, up = 40.0, 900.0, 0.2, 0.5
    method = METHODS["la"](lr=LR, importance=importance, lam=lam, lam_max=lam_max, down=down, up=up, tau=0.3)
    learner = dry_learner(tiny_bert_dry, method, stream, batch_size=4, min_delta=0.0)
    learner.fixed = frozenset({"lr", "lam", "down", "up"})
    task = stream.tasks[1]
    past = {name: value.clone() for name, value in method.alpha.items()}
    there = naive_walk(learner, past, 0.0)
    ahead = naive_of(learner, importance, there)
    scale = {name: float(value.max()) for name, value in ahead.items()}
    # Made-up importances of the same size, so that shares are neither all 0 nor all 1.
    past = {name: value * scale[name] for name, value in past.items()}
    lam = method.lam = 10.0 / max(scale.values())
    method.lam_max = 20 * lam
    method.alpha = {name: value.clone() for name, value in past.items()}
    learner.begin(task)
    found = method.ahead(learner, task)
    assert_close(found, ahead)
    alpha = naive_alpha(past, ahead, lam, 20 * lam, down, up, tau=0.3)
    main = naive_walk(learner, alpha, lam)
    lesson = learner.learn(task)
    trial = lesson.decision.trial
    assert trial.choice == {"lr": LR, "lam": lam, "lam_max": 20 * lam, "down": down, "up": up}
    assert trial.fit["best_epoch"] == 1
    assert_close(method.pulls["penalty"].weights, alpha)
    assert distance(P.snapshot(learner.model), main.end) < 5e-3 * LR
    assert distance(main.end, there.end) > 0.02 * LR, "the penalty must show"
    own = naive_of(learner, importance, main)
    assert_close(method.alpha, {name: (past[name] + own[name]) / 2 for name in own})
    if importance in ("si", "rwalk"):
        with pytest.raises(AssertionError):
            assert_close(own, ahead)


@pytest.mark.slow
@pytest.mark.parametrize("importance", ESTIMATORS)
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_la_modulates_any_importance(one_layer, importance, pooling):
    stream = few()
    values = {"lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5}
    method = METHODS["la"](importance=importance, pooling=pooling, **values)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam", "down", "up"})
    measured: list[P.Params] = []
    measure = method.measure
    method.measure = lambda own: measured.append(measure(own)) or dict(measured[-1])
    learner.learn(stream.tasks[0])
    first = method.state_dict()["alpha"]
    lesson = learner.learn(stream.tasks[1])
    assert lesson.decision.trial.choice["down"] == 0.3, "the task had a main phase"
    assert kept(lesson)
    for name, value in method.alpha.items():
        both = torch.stack([first[name], measured[-1][name]])
        expected = both.mean(0) if pooling == "mean" else both.max(0).values
        assert torch.allclose(value, expected, rtol=1e-6, atol=0), name
    assert len(measured) == 3, "one look ahead, two finished tasks"

    task = stream.tasks[2]
    learner.begin(task)
    trial = learner.trial(task, {"lr": method.lr, "lam": 0.0})
    assert trial.fit["best_epoch"] == 1
    with P.using(learner.model, trial.params):
        over = Training(
            learner.model, learner.train, learner.start, trial.read()["trace"], 4, learner.task_seed
        )
        ahead = ESTIMATORS[importance]().finish(over)
    kinds = []
    for strategy in ("balance", "cf", "kt"):
        with method.trying({"strategy": strategy}):
            learner._put_back()
            method.before_task(learner, task)
        weights = method.pulls["penalty"].weights
        kinds.append(weights)
        for name, past in method.alpha.items():
            if name.startswith("head."):
                assert torch.equal(weights[name], past)
                continue
            rho = equations.relative_importance(past, ahead[name])
            tau = equations.cutoff(rho, 0.8)
            lowest, highest = equations.up_bounds(tau, 2.0, 50.0)
            expected = equations.modulate(past, rho, tau, (lowest + highest) / 2, 0.3, strategy)
            assert torch.allclose(weights[name], expected, rtol=1e-5, atol=0), (strategy, name)
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert any(not torch.equal(kinds[left][name], kinds[right][name]) for name in method.alpha)


@pytest.mark.parametrize("importance", ["si", "rwalk"])
def test_the_look_ahead_and_the_main_phase_have_traces_of_their_own(one_layer, importance):
    """What a trace held before makes no difference to either."""
    stream = few()
    values = {"lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5, "importance": importance}
    found = []
    for rubbish in (False, True):
        method = METHODS["la"](**values)
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam", "down", "up"})
        learner.learn(stream.tasks[0])
        learner.begin(stream.tasks[1])
        if rubbish:
            method.trace = {f"path/{name}": value + 1e6 for name, value in P.snapshot(learner.model).items()}
            learner.start_here()
        choice = {"lr": 3e-3, "lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5}
        trial = learner.trial(stream.tasks[1], choice)
        assert trial.fit["best_epoch"] == 1
        found.append((trial.params, trial.read()["trace"]))
        ahead = learner.trial(stream.tasks[1], {"lr": 3e-3, "lam": 0.0})
        traces = trial.read()["trace"], ahead.read()["trace"]
        assert any(not torch.equal(value, traces[1][key]) for key, value in traces[0].items())
    for clean, dirty in zip(*found, strict=True):
        assert_same_bits(clean, dirty)


# ---- the merge ----------------------------------------------------------------------------------------


def measured_at(learner: Learner, importance: str, params: P.Params, trace: P.Params) -> P.Params:
    with P.using(learner.model, params):
        size = learner.settings.batch_size
        over = Training(learner.model, learner.train, learner.start, trace, size, learner.task_seed)
        return ESTIMATORS[importance]().finish(over)


@pytest.mark.parametrize("importance", ESTIMATORS)
@pytest.mark.parametrize("merge", [1.0, 0.4])
def test_the_merge_by_hand(one_layer, classes, importance, merge):
    method = METHODS["la-merge"](importance=importance, merge=merge)
    learner = make_learner(one_layer, method, classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    old = P.snapshot(learner.model)
    past = method.state_dict()["alpha"]
    lesson = learner.learn(classes.tasks[1])
    trial = lesson.decision.trial
    assert trial.fit["best_epoch"] > 0
    there = trial.params
    ahead = measured_at(learner, importance, there, trial.read()["trace"])
    merged = P.snapshot(learner.model)
    shares = []
    for name, new in there.items():
        rows = len(old[name]) if name.startswith("head.") else None  # of labels the past had
        values = zip(
            old[name].flatten().tolist(),
            new[:rows].flatten().tolist(),
            past[name].flatten().tolist(),
            ahead[name][:rows].flatten().tolist(),
            merged[name][:rows].flatten().tolist(),
            strict=True,
        )
        for here, then, a, b, found in values:
            rho = merge * a / (a + b + 1e-10)
            shares.append(rho)
            assert abs(found - (rho * here + (1 - rho) * then)) < 1e-5 * max(1.0, abs(here), abs(then)), name
        if name.startswith("head."):
            assert len(new) == 4
            assert torch.equal(merged[name][2:], new[2:]), "rows of new labels are the look-ahead's own"
    assert 0.05 * merge < sum(shares) / len(shares) < 0.95 * merge, "both sides must show"
    own = measured_at(learner, importance, merged, trial.read()["trace"])
    for name, value in method.alpha.items():
        padded = torch.zeros_like(value)
        padded[: len(past[name])] = past[name]
        expected = (padded + own[name]) / 2
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-6 * float(expected.max())), name


def test_a_merge_of_nothing_is_seq_bit_for_bit(one_layer, classes):
    found = []
    for method in (METHODS["seq"](), METHODS["la-merge"](merge=0.0), METHODS["la-merge"](merge=1.0)):
        learner = make_learner(one_layer, method, classes, small(epochs=2), fixed={"merge"})
        for task in classes.tasks[:2]:
            learner.learn(task)
        found.append(weights_of(learner))
    assert_same_bits(found[0], found[1])
    assert any(not torch.equal(value, found[0][name]) for name, value in found[2].items())


@pytest.mark.parametrize(
    ("importance", "looks"),
    [("mas", 1), ("fisher", 1), ("si", 0), ("rwalk", 0)],
    ids=lambda value: str(value),
)
def test_the_merge_costs_no_training(one_layer, importance, looks):
    stream: Stream = few(6)
    settings = small(epochs=2, batch_size=5, rates=(1e-2, 1e-3))
    learner = make_learner(one_layer, METHODS["la-merge"](importance=importance), stream, settings)
    batches = 3  # of 12 sentences
    for number, task in enumerate(stream.tasks[:2], start=1):
        lesson = learner.learn(task)
        assert [trial.choice for trial in lesson.trials] == [{"lr": 1e-2}, {"lr": 1e-3}]
        chosen = lesson.decision.trial
        assert chosen.score == max(trial.score for trial in lesson.trials)
        [other] = [trial for trial in lesson.trials if trial is not chosen]
        trained, rest = (batches * trial.fit["epochs"] for trial in (chosen, other))
        measured = batches * looks * number
        passes = {phase: count for phase, count in lesson.chosen_passes.items() if any(count.values())}
        expected = {"train": {"forward": trained, "backward": trained}}
        if measured:
            expected["importance"] = {"forward": measured, "backward": measured}
        assert passes == expected
        assert lesson.search_passes == {"train": {"forward": rest, "backward": rest}}


@pytest.mark.parametrize(("labels", "looks"), [("true", 1), ("sample", 1), ("expected", 2)])
def test_passes_of_ewc(one_layer, labels, looks):
    stream = few()
    learner = make_learner(one_layer, METHODS["ewc"](labels=labels), stream, small(**SHORT))
    lesson = learner.learn(stream.tasks[0])
    assert lesson.chosen_passes["importance"] == {"forward": 3 * looks, "backward": 3 * looks}
    assert lesson.chosen_passes["train"] == {"forward": 3, "backward": 3}
