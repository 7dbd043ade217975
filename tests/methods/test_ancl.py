"""ANCL over MAS and LwF: worked examples, trainings by hand, the auxiliary network, the search for λ_a."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, make_learner, small, weights_of
from test_la import naive_importance
from test_lwf import (
    STREAMS,
    Table,
    naive_epoch,
    pupil,
    question,
    row,
    searched,
    seated,
    second_task,
    some,
    teaching,
)
from test_mas import LR, distance, dry_learner
from torch import Tensor, nn

import holdfast.learner
from holdfast import params as P
from holdfast.equations import quadratic_penalty
from holdfast.learner import Learner
from holdfast.losses import distillation
from holdfast.methods import METHODS
from holdfast.methods.ancl import ANCLLWF, ANCLMAS
from holdfast.methods.lwf import Teacher
from holdfast.models.classifier import Output
from holdfast.passes import added
from holdfast.proximal import Pull, pull_after_step

pytestmark = (
    pytest.mark.slow
)  # whole searches over two strengths; the step between two anchors is in test_two_anchors
NAMES = {"ancl-mas": "mas", "ancl-lwf": "lwf"}
every_ancl = pytest.mark.parametrize("name", NAMES)


# ---- worked examples: specs/ancl.md, section 9 --------------------------------------------------------


def exact(*values: float) -> P.Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


THETA, OLD, AUX = exact(1, -1), exact(0.8, -1.2), exact(1.3, -0.5)
IMPORTANCE, IMPORTANCE_AUX = exact(2, 0.5), exact(1, 4)


def example_pulls(scale: float = 1.0) -> dict[str, Pull]:
    return {
        "penalty": Pull(OLD, IMPORTANCE, 3.0 * scale),
        "auxiliary": Pull(AUX, IMPORTANCE_AUX, 0.5 * scale),
    }


def silent(*args: Any) -> Output:
    """A model with nothing to learn."""
    return Output(torch.empty(0), torch.empty(0), torch.zeros(()))


def test_example_a_terms_and_gradient():
    values = {
        name: float(quadratic_penalty(THETA, pull.anchor, pull.weights, pull.lam))
        for name, pull in example_pulls().items()
    }
    assert values == pytest.approx({"penalty": 0.15, "auxiliary": 0.2725}, abs=1e-12)
    gradient = sum(pull.gradient("w", THETA["w"]) for pull in example_pulls().values())
    assert gradient.tolist() == pytest.approx([1.05, -0.70], abs=1e-12)


def test_example_a_in_the_whole_loss():
    method = ANCLMAS(lam=3.0, lam_a=0.5)
    weight = nn.Parameter(THETA["w"].clone())
    method.live, method.pulls = {"w": weight}, example_pulls()
    terms = method.losses(silent, None)
    assert set(terms) == {"task", "penalty", "auxiliary"}
    assert terms["penalty"].item() == pytest.approx(0.15, abs=1e-12)
    assert terms["auxiliary"].item() == pytest.approx(0.2725, abs=1e-12)
    assert sum(terms.values()).item() == pytest.approx(0.4225, abs=1e-12)
    sum(terms.values()).backward()
    assert weight.grad.tolist() == pytest.approx([1.05, -0.70], abs=1e-12)
    assert method.added_gradient("w", weight).tolist() == pytest.approx([1.05, -0.70], abs=1e-12)


def test_in_the_proximal_form_the_loss_is_the_task_loss_alone():
    method = ANCLMAS(lam=3.0, lam_a=0.5, penalty="proximal")
    method.live, method.pulls = {"w": nn.Parameter(THETA["w"].clone())}, example_pulls()
    assert set(method.losses(silent, None)) == {"task"}
    assert method.added_gradient("w", method.live["w"]) == 0


def test_example_a_the_point_between_old_and_auxiliary():
    weight = nn.Parameter(THETA["w"].clone())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    pull_after_step(optimizer, {"w": weight}, list(example_pulls(1e15).values()))
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.83846154, -0.8], abs=1e-8)


FOUR, FOUR_OLD, FOUR_AUX = row(1.0, 0.2, 0.8, -0.4), row(1.4, -0.1, 0.05, 0.02), row(0.3, 0.1, 1.6, -1.1)
ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("past", "new", "old", "aux", "total"),
    [([0, 1], [2, 3], 0.64134377, 0.56101017, 1.49890919), (ALL, ALL, 1.36024022, 1.33097947, 1.93535434)],
    ids=["masked", "unmasked"],
)
def test_example_c(past, new, old, aux, total):
    assert distillation(FOUR[:, new], FOUR_AUX[:, new], some(1)).item() == pytest.approx(aux, abs=3e-7)
    model = Table(FOUR)
    teachers = {
        "distillation": Teacher({"z": FOUR_OLD}, past, 0.5),
        "auxiliary": Teacher({"z": FOUR_AUX}, new, 0.1),
    }
    terms = seated(ANCLLWF(), model, teachers).losses(model, question(2, 4))
    assert terms["task"].item() == pytest.approx(1.12213629, abs=3e-7)
    assert terms["distillation"].item() == pytest.approx(0.5 * old, abs=3e-7)
    assert terms["auxiliary"].item() == pytest.approx(0.1 * aux, abs=3e-7)
    assert sum(terms.values()).item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [2, 3, 5]), ("ema", [1, 2.5, 5.75])])
def test_example_d_what_is_pooled(pooling, expected):
    method = ANCLMAS(pooling=pooling, keep=0.5)
    measured = iter((2.0, 4.0, 9.0))
    method.measure = lambda learner: exact(next(measured))
    found = []
    for _ in range(3):
        method.after_task(SimpleNamespace(start=exact(7.0)), None)
        found.append(method.alpha["w"].item())
    assert found == expected


# ---- reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"), [("ancl-mas", {}), ("ancl-mas", {"penalty": "proximal"}), ("ancl-lwf", {})]
)
def test_without_lambda_a_it_is_the_method_below(tiny_bert, classes, name, options):
    """Example B, first half, with dropout and all."""
    ends = []
    for one, more in ((NAMES[name], {}), (name, {"lam_a": 0.0}), (name, {"lam_a": 0.5})):
        learner = make_learner(tiny_bert, METHODS[one](**options), classes, small(epochs=2))
        learner.learn(classes.tasks[0])
        learner.begin(classes.tasks[1])
        ends.append(learner.trial(classes.tasks[1], {"lr": 1e-2, "lam": 5.0} | more).params)
    assert_same_bits(ends[0], ends[1])
    assert distance(ends[0], ends[2]) > 1e-4, "with it, it is not"


@every_ancl
def test_both_strengths_at_zero_are_seq(tiny_bert, domains, name):
    seq = make_learner(tiny_bert, METHODS["seq"](), domains, small(epochs=2))
    ancl = make_learner(tiny_bert, METHODS[name](), domains, small(epochs=2), fixed={"lam", "lam_a"})
    for task in domains.tasks[:2]:
        seq.learn(task)
        ancl.learn(task)
    assert_same_bits(weights_of(seq), weights_of(ancl))


@pytest.mark.parametrize(("penalty", "steps"), [("loss", 200), ("proximal", 3)])
def test_without_task_loss_and_without_lambda_the_auxiliary_network_is_the_goal(
    tiny_bert, classes, penalty, steps
):
    """Example B, second half."""
    method = ANCLMAS(penalty=penalty)
    learner = make_learner(tiny_bert, method, classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    learner.begin(classes.tasks[1])
    with method.trying({"lr": 1e-2, "lam": 0.0, "lam_a": 1e6}):
        method.before_task(learner, classes.tasks[1])
        aux = learner.look_ahead(classes.tasks[1]).params
        assert set(method.pulls) == {"auxiliary"}
        live = P.trainable(learner.model)
        optimizer = method.optimizer(live)
        away = distance(learner.start, aux)
        assert away > 5e-3
        for t in range(steps):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - t / steps)
            optimizer.zero_grad()
            loss = sum(method.losses(silent, None).values())
            (loss + 0.0 * sum(weight.sum() for weight in live.values())).backward()
            optimizer.step()
    alpha = method.pulls["auxiliary"].weights
    reached = 0
    for name, weight in live.items():
        needed = alpha[name] > 1e-4
        reached += int(needed.sum())
        assert torch.allclose(weight[needed], aux[name][needed], atol=2e-2 * away), name
        assert torch.equal(weight[alpha[name] == 0], learner.start[name][alpha[name] == 0])
    assert reached > 0.9 * P.size(aux)


# ---- whole trainings ----------------------------------------------------------------------------------


def naive_penalty(*pulls: tuple[P.Params, P.Params, float]) -> Callable[..., Tensor]:
    """Σ of (λ/2) Σ α (θ - anchor)²."""

    def term(student: nn.Module, logits: Tensor, batch: Any) -> Tensor:
        live = dict(student.named_parameters())
        return sum(
            lam / 2 * (alpha[name] * (live[name] - value) ** 2).sum()
            for anchor, alpha, lam in pulls
            for name, value in anchor.items()
        )

    return term


def naive_proximal(old: tuple[P.Params, P.Params, float], aux: tuple[P.Params, P.Params, float]) -> Any:
    """(u + r (λ α θ_old + λ_a α_aux θ_aux)) / (1 + r (λ α + λ_a α_aux)), r = lr/(√v̂ + ε)."""

    def after(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter], t: int) -> None:
        with torch.no_grad():
            for name, weight in params.items():
                v = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.999**t)
                r = optimizer.param_groups[0]["lr"] / (v.sqrt() + 1e-8)
                one, two = (lam * alpha[name] for _, alpha, lam in (old, aux))
                pulled = weight + r * (one * old[0][name] + two * aux[0][name])
                weight.copy_(pulled / (1 + r * (one + two)))

    return after


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("penalty", "lam", "lam_a"), [("loss", 300.0, 2.0), ("proximal", 0.03, 0.3)])
def test_a_training_of_ancl_mas_by_hand(tiny_bert_dry, stream, penalty, lam, lam_a):
    """The look-ahead, its importance, then AdamW with two pulls: all of it naive."""
    task, method = STREAMS[stream]().tasks[1], ANCLMAS(lr=LR, penalty=penalty)
    learner = dry_learner(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start, alpha = P.snapshot(learner.model), method.state_dict()["alpha"]
    aux = naive_epoch(learner)
    alpha_aux = naive_importance(learner, aux)

    def trained(lam: float, lam_a: float, weights: P.Params = alpha_aux) -> P.Params:
        pulls = (start, alpha, lam), (aux, weights, lam_a)
        if penalty == "loss":
            return naive_epoch(learner, naive_penalty(*pulls))
        return naive_epoch(learner, after=naive_proximal(*pulls))

    expected = trained(lam, lam_a)
    trial = learner.trial(task, {"lr": LR, "lam": lam, "lam_a": lam_a})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 2e-3 * LR
    others = {"λ": trained(0.0, lam_a), "λ_a": trained(lam, 0.0), "α_aux": trained(lam, lam_a, alpha)}
    for what, other in others.items():
        assert distance(other, expected) > 0.05 * LR, f"{what} must show"


@pytest.mark.parametrize(
    ("stream", "outputs", "past", "new"),
    [
        ("classes", "past", [0, 1], [2, 3]),
        ("classes", "all", ALL, ALL),
        ("domains", "past", [0, 1], [0, 1]),
    ],
)
def test_a_training_of_ancl_lwf_by_hand(tiny_bert_dry, stream, outputs, past, new):
    task, method = STREAMS[stream]().tasks[1], ANCLLWF(lr=LR, outputs=outputs)
    learner = dry_learner(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start, aux, lam, lam_a = P.snapshot(learner.model), naive_epoch(learner), 30.0, 20.0

    def trained(past: list[int], new: list[int], lam: float, lam_a: float) -> P.Params:
        return naive_epoch(learner, teaching(learner, start, past, lam), teaching(learner, aux, new, lam_a))

    expected = trained(past, new, lam, lam_a)
    trial = learner.trial(task, {"lr": LR, "lam": lam, "lam_a": lam_a})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 5e-3 * LR
    others = {"λ": (past, new, 0.0, lam_a), "λ_a": (past, new, lam, 0.0)}
    if stream == "classes":
        others["rows"] = (past, past if past != new else [2, 3], lam, lam_a)
    for what, other in others.items():
        assert distance(trained(*other), expected) > 0.05 * LR, f"{what} must show"


# ---- the auxiliary network ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "number", "outputs", "past", "new"),
    [
        ("classes", 1, "past", [0, 1], [2, 3]),
        ("classes", 2, "past", [0, 1, 2, 3], [4, 5]),
        ("classes", 1, "all", ALL, ALL),
        ("domains", 1, "past", [0, 1], [0, 1]),
        ("domains", 2, "all", [0, 1], [0, 1]),
    ],
)
def test_who_teaches_which_outputs(tiny_bert, stream, number, outputs, past, new):
    tasks = STREAMS[stream]().tasks
    method = ANCLLWF(lam=1.0, lam_a=0.5, outputs=outputs)
    learner = make_learner(tiny_bert, method, STREAMS[stream](), small(epochs=1))
    for seen in range(number):
        learner.begin(tasks[seen])
        learner.tasks_seen += 1
        learner._begin_anew()
    learner.begin(tasks[number])
    method.before_task(learner, tasks[number])
    found = {name: (teacher.rows, teacher.lam) for name, teacher in method.teachers.items()}
    assert found == {"distillation": (past, 1.0), "auxiliary": (new, 0.5)}


def test_in_a_preallocated_head_both_teach_rows_of_their_labels(tiny_bert, classes):
    method = ANCLLWF(lam=1.0, lam_a=0.5)
    learner = second_task(tiny_bert, method, classes, small(head="preallocated", epochs=1))
    method.before_task(learner, classes.tasks[1])
    labels = learner.model.head.labels
    for name, task in (("distillation", classes.tasks[0]), ("auxiliary", classes.tasks[1])):
        assert sorted(labels[i] for i in method.teachers[name].rows) == sorted(task.labels)


@every_ancl
def test_the_first_task_has_no_auxiliary_network(tiny_bert, classes, name):
    ends = []
    for one, choice in (("seq", {}), (name, {"lam": 5.0, "lam_a": 5.0})):
        learner = make_learner(tiny_bert, METHODS[one](), classes)
        learner.begin(classes.tasks[0])
        trial = learner.trial(classes.tasks[0], {"lr": 1e-2} | choice)
        ends.append(trial.params)
    assert trial.borrowed == {}
    assert_same_bits(*ends)


@pytest.fixture
def trainings(monkeypatch):
    """(lr, λ, λ_a) of every training that really takes place."""
    made: list[tuple[float, float, float]] = []
    fit = holdfast.learner.fit

    def watched(model: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        made.append((method.lr, method.lam, method.lam_a))
        return fit(model, method, *args, **kwargs)

    monkeypatch.setattr(holdfast.learner, "fit", watched)
    return made


def scripted(learner: Learner, score: Callable[[float, float, float], float]) -> Learner:
    """Real trainings whose scores are told by (lr, λ, λ_a)."""
    method = learner.method
    learner.score = lambda split: score(method.lr, method.lam, method.lam_a)
    return learner


def gold_then_half(lr: float, lam: float, lam_a: float) -> float:
    """The rate 1e-3 is best; a hold costs much of the score, and no λ_a helps."""
    return (0.9 if lr == 1e-3 else 0.8) if lam == 0 else 0.5


@every_ancl
def test_the_auxiliary_network_is_the_gold_training(tiny_bert, classes, trainings, name):
    learner = make_learner(
        tiny_bert, METHODS[name](lam=5.0), classes, small(epochs=1, rates=(1e-2, 1e-3, 1e-4)), fixed={"lam"}
    )
    scripted(learner, gold_then_half)
    learner.learn(classes.tasks[0])
    del trainings[:]
    anchors: list[P.Params] = []
    before_task = learner.method.before_task

    def watched(own: Learner, task: Any) -> None:
        before_task(own, task)
        method = own.method
        pulls, teachers = getattr(method, "pulls", {}), getattr(method, "teachers", {})
        if "auxiliary" in pulls:
            anchors.append(pulls["auxiliary"].anchor)
        if "auxiliary" in teachers:
            anchors.append(teachers["auxiliary"].params)

    learner.method.before_task = watched
    lesson = learner.learn(classes.tasks[1])
    off = [(lr, 0.0, 0.0) for lr in (1e-2, 1e-3, 1e-4)]
    on = [(1e-3, 5.0, lam_a) for lam_a in (0.0, 0.01, 0.04)]
    assert trainings == off + on, "nothing is trained twice, and nothing beside the search"
    gold = lesson.trials[1]
    assert len(anchors) == 2
    for anchor in anchors:
        assert_same_bits(anchor, gold.params)
    assert gold.borrowed == lesson.trials[3].borrowed == {}
    for trial in lesson.trials[4:]:
        assert trial.borrowed["look-ahead"] == {"look-ahead": gold.passes["train"]}


@every_ancl
def test_passes_are_counted_once(tiny_bert, classes, name):
    settings, fixed = small(epochs=2, patience=9, batch_size=5), {"lam", "lam_a"}
    learner = make_learner(tiny_bert, METHODS[name](lam=5.0, lam_a=0.5), classes, settings, fixed=fixed)
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    assert [(t.choice["lam"], t.choice["lam_a"]) for t in lesson.trials] == [(0, 0), (5, 0), (5, 0.5)]
    b = math.ceil(24 / 5)
    training, measuring = {"forward": 2 * b, "backward": 2 * b}, {"forward": b, "backward": b}
    chosen = {"train": training, "look-ahead": training}
    if name == "ancl-mas":
        chosen |= {"look-ahead importance": measuring, "importance": measuring}
        rest = {"train": training}
    else:
        chosen["teacher"] = {"forward": 2 * 2 * b, "backward": 0}
        rest = {"train": training, "teacher": {"forward": 2 * b, "backward": 0}}
    assert lesson.chosen_passes == chosen
    assert lesson.search_passes == rest
    everything = added(*({"": count} for count in added(chosen, rest).values()))
    assert everything[""]["backward"] == 3 * 2 * b + (2 * b if name == "ancl-mas" else 0)


def test_the_auxiliary_importance_is_fresh_and_never_pooled(tiny_bert_dry, domains):
    method = ANCLMAS(lam=5.0)
    learner = make_learner(tiny_bert_dry, method, domains, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda lr, lam, lam_a: 0.5 if lam else 0.9)
    measured: list[tuple[P.Params, P.Params]] = []  # where, and what
    measure, before_task, aux = method.measure, method.before_task, []

    def watched_measure(own: Learner) -> P.Params:
        measured.append((P.snapshot(own.model), measure(own)))
        return measured[-1][1]

    def watched(own: Learner, task: Any) -> None:
        before_task(own, task)
        if "auxiliary" in method.pulls:
            pull = method.pulls["auxiliary"]
            expected = naive_importance(own, pull.anchor)
            assert max(float(value.max()) for value in expected.values()) > 0.1
            for key, value in expected.items():
                assert torch.allclose(pull.weights[key], value, rtol=1e-3, atol=1e-5), key
            aux.append(pull)

    method.measure, method.before_task = watched_measure, watched
    for task in domains:
        learner.learn(task)
    assert len(aux) == 4, "two tasks, two λ_a each"
    assert len(measured) == 5, "α once a task, α_aux once a later task, however many λ_a"
    (_, one), (at_aux, _), (_, two), (at_last, _), (_, three) = measured
    assert_same_bits(at_aux, aux[0].anchor)
    assert_same_bits(at_last, aux[2].anchor)
    for key, value in method.alpha.items():
        mean = (one[key] + two[key] + three[key]) / 3
        assert torch.allclose(value, mean, rtol=1e-5, atol=1e-9), key


@every_ancl
def test_nothing_of_it_survives_the_task(tiny_bert, classes, name):
    fixed, settings = {"lam", "lam_a"}, small(epochs=1)
    ancl = make_learner(tiny_bert, METHODS[name](lam=5.0, lam_a=2.0), classes, settings, fixed=fixed)
    below = make_learner(tiny_bert, METHODS[NAMES[name]](lam=5.0), classes, settings, fixed={"lam"})
    for learner in (ancl, below):
        for task in classes.tasks[:2]:
            lesson = learner.learn(task)
        if learner is ancl:
            aux = lesson.trials[0].params
    state, other = ancl.method.state_dict(), below.method.state_dict()
    assert state.keys() == other.keys()
    tensors, meta = ancl.state()
    assert {group: P.size(params) for group, params in tensors.items()} == {
        group: P.size(params) for group, params in below.state()[0].items()
    }
    assert meta["numbers"] == below.state()[1]["numbers"]
    for group, params in tensors.items():
        for key, value in params.items():
            assert not torch.equal(value, aux[key]), (group, key)
    assert ancl._trials == ancl._shared == ancl._ledger.borrowed == {}


# ---- the search for λ_a -------------------------------------------------------------------------------


def pairs(made: list[Any]) -> list[tuple[float, float]]:
    return [(trial.choice["lam"], trial.choice["lam_a"]) for trial in made]


def scored(values: dict[tuple[float, float], float], otherwise: float = 0.0) -> Callable[[Any], float]:
    return lambda choice: values.get((choice["lam"], choice["lam_a"]), otherwise)


GRID = [0.01, 0.02, 0.04, 0.08]
DOUBLING = {"lam_a_growth": 2.0, "lam_a_steps": 4}


@pytest.mark.parametrize(
    ("scores", "tried", "gained"),
    [
        ({0.01: 0.86}, 1, True),  # beats λ_a = 0
        ({0.04: 0.851}, 3, True),
        ({0.01: 0.85, 0.02: 0.84, 0.08: 0.88}, 4, True),  # as good as λ_a = 0 is no gain
        ({0.01: 0.85, 0.02: 0.85, 0.04: 0.85, 0.08: 0.85}, 4, False),
        ({}, 4, False),
    ],
    ids=str,
)
def test_lambda_a_goes_up_to_the_first_gain(scores, tried, gained):
    values = {(0.0, 0.0): 0.9, (10.0, 0.0): 0.1, (1.0, 0.0): 0.85}
    values |= {(1.0, lam_a): score for lam_a, score in scores.items()}
    decision, made = searched(ANCLLWF(lam_a=0.7), pupil(**DOUBLING), scored(values))
    plain = [(0.0, 0.0), (0.0, 0.0), (10.0, 0.0), (1.0, 0.0)]
    assert pairs(made) == plain + [(1.0, lam_a) for lam_a in GRID[:tried]]
    assert decision.trial is (made[-1] if gained else made[3]), "else λ_a = 0, the strongest λ alone"
    assert decision.notes == {"gold": 0.9, "flags": [], "plain": 0.85, "gained": gained}


def test_lambda_a_stops_where_gold_is_reached():
    """λ_a = 0 scores above gold already: a λ_a that loses some of it, but not below gold, is good enough."""
    values = {(0.0, 0.0): 0.9, (10.0, 0.0): 0.95, (10.0, 0.01): 0.89, (10.0, 0.02): 0.9}
    decision, made = searched(ANCLLWF(), pupil(**DOUBLING), scored(values))
    assert pairs(made)[2:] == [(10.0, 0.0), (10.0, 0.01), (10.0, 0.02)]
    assert decision.trial is made[-1]
    assert decision.notes["gained"]


def test_without_a_hold_there_is_no_lambda_a_to_search():
    decision, made = searched(ANCLLWF(), pupil(), scored({(0.0, 0.0): 0.9}))
    assert decision.trial is made[0]
    assert all(lam_a == 0 for _, lam_a in pairs(made))
    infinite = pupil({"lam"})
    decision, made = searched(ANCLMAS(lam=math.inf), infinite, scored({(0.0, 0.0): 0.9}))
    assert pairs(made) == [(0.0, 0.0), (0.0, 0.0), (math.inf, 0.0)]
    assert decision.trial is made[-1]


@pytest.mark.parametrize("method", [ANCLMAS, ANCLLWF])
def test_lambda_fixed_and_lambda_a_searched(method):
    values = {(0.0, 0.0): 0.9, (7.0, 0.0): 0.5, (7.0, 0.04): 0.6}
    decision, made = searched(method(lam=7.0, lam_a=0.3), pupil({"lam"}, **DOUBLING), scored(values))
    assert pairs(made)[2:] == [(7.0, 0.0), (7.0, 0.01), (7.0, 0.02), (7.0, 0.04)]
    assert decision.trial is made[-1]


def test_lambda_searched_and_lambda_a_fixed():
    """λ is still searched without the auxiliary network; then one training with it, whatever it scores."""
    values = {(0.0, 0.0): 0.9, (1.0, 0.0): 0.85}
    decision, made = searched(ANCLLWF(lam_a=0.3), pupil({"lam_a"}), scored(values))
    assert pairs(made)[2:] == [(10.0, 0.0), (1.0, 0.0), (1.0, 0.3)]
    assert decision.trial is made[-1]


def test_both_fixed():
    decision, made = searched(ANCLMAS(lam=7.0, lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert pairs(made)[2:] == [(7.0, 0.0), (7.0, 0.3)]
    assert decision.trial is made[-1]


def test_a_fixed_lambda_a_is_honoured_without_a_hold_too():
    """λ = 0 and λ_a > 0, both the user's own: a pull towards the auxiliary network and nothing else."""
    decision, _ = searched(ANCLLWF(lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert decision.trial.choice["lam_a"] == 0.3


@every_ancl
def test_lambda_a_starts_again_for_every_task(tiny_bert, classes, name):
    learner = make_learner(tiny_bert, METHODS[name](lam=5.0), classes, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda lr, lam, lam_a: 0.9 if lam == 0 else 0.5 + 0.1 * (lam_a >= 0.04))
    found = []
    for task in classes:
        found.append(pairs(learner.learn(task).trials))
    assert learner.method.lam_a == 0.04, "it was carried over, and not used"
    later = [(0.0, 0.0), (5.0, 0.0), (5.0, 0.01), (5.0, 0.04)]
    assert found == [[(0.0, 0.0)], later, later]


@every_ancl
def test_a_real_search(tiny_bert, classes, name):
    """λ without the auxiliary network, then λ_a at that λ; the decision follows from the scores."""
    learner = make_learner(tiny_bert, METHODS[name](thr=0.01), classes, small(epochs=2, rates=(1e-2, 1e-3)))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    decided, notes = lesson.decision.trial, lesson.decision.notes
    plain = [trial for trial in lesson.trials if trial.choice["lam_a"] == 0]
    pulled = lesson.trials[len(plain) :]
    assert lesson.trials[: len(plain)] == plain, "λ comes first"
    assert notes["gold"] == max(trial.score for trial in plain if trial.choice["lam"] == 0)
    lam, lr = decided.choice["lam"], decided.choice["lr"]
    assert lam > 0
    base = next(t for t in plain if (t.choice["lam"], t.choice["lr"]) == (lam, lr))
    assert notes["plain"] == base.score
    assert [trial.choice for trial in pulled] == [
        {"lr": lr, "lam": lam, "lam_a": lam_a} for lam_a in (0.01, 0.04)[: len(pulled)]
    ]
    good = [trial.score > base.score or trial.score >= notes["gold"] for trial in pulled]
    assert pulled
    assert not any(good[:-1])
    assert notes["gained"] == good[-1]
    assert decided is (pulled[-1] if good[-1] else base)
    assert good[-1] or len(pulled) == 2
    assert_same_bits(decided.params, P.snapshot(learner.model))


@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_where_nobody_pulls_weights_train_freely(tiny_bert, classes, penalty):
    """α = 0 and α_aux = 0: no 0/0, and the training without any pull."""
    learner = make_learner(tiny_bert, ANCLMAS(penalty=penalty), classes)
    learner.learn(classes.tasks[0])
    for value in learner.method.alpha.values():
        value.zero_()
    learner.begin(classes.tasks[1])
    learner.method.ahead = lambda own, task: P.zeros(own.start)
    free, pulled = (
        learner.trial(classes.tasks[1], {"lr": 1e-2, "lam": lam, "lam_a": lam}).params for lam in (0.0, 1e6)
    )
    assert distance(learner.start, free) > 1e-3
    assert distance(free, pulled) < 1e-6
