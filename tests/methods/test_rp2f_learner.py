"""RP2F in whole runs: the learner's weights, the search, and resuming after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.rp2f import HEAD, naive_decorrelation
from helpers.toys import small
from helpers.watching import watch_trainings
from helpers.weights import assert_same_bits, distance, weights_of

from holdfast import importance
from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Method, Training

# ---- the learner trains freely ------------------------------------------------------------------------


def second_task(path: str, stream: Stream, own: Any = None, **values: Any) -> AtHand:
    """Begin a second task with distant fused and free weights."""
    method = METHODS["rp2f"](**{"lr": 1e-2, "lam": 0.0} | values)
    learner = make_learner(path, method, stream, own or small(epochs=2, patience=3), fixed={"lr", "lam"})
    learner.learn(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    for name, value in method.free.items():
        method.free[name] = value + 0.01 * torch.randn(value.shape, generator=generator)
    return learner.begin(stream.tasks[1])


def spied(hand: AtHand, monkeypatch: pytest.MonkeyPatch) -> list[tuple[P.Params, P.Params]]:
    """Record the deployed weights and the model's own at every evaluation."""
    seen: list[tuple[P.Params, P.Params]] = []
    deployed = type(hand.method).deployed

    def spy(method: Method, own: AtHand, training: Training, epoch: int) -> P.Params:
        found = deployed(method, own, training, epoch)
        assert own is hand
        assert epoch == len(seen)
        seen.append((found, P.snapshot(own.model)))
        return found

    monkeypatch.setattr(type(hand.method), "deployed", spy)
    return seen


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("stream_name", ["classes", "domains"])
def test_where_the_learner_starts(one_layer, stream_name, continues, request, monkeypatch):
    stream = request.getfixturevalue(stream_name)
    hand = second_task(one_layer, stream, small(epochs=1), continues=continues)
    start, free = P.snapshot(hand.model), hand.method.state_dict()["free"]
    assert distance(start, free) > 1e-2
    seen = spied(hand, monkeypatch)
    hand.trial(stream.tasks[1], {"lr": 1e-2})
    deployed, live = seen[0]
    assert_same_bits(deployed, start)
    assert_same_bits(live, free if continues else start)
    assert distance(seen[1][1], live) > 1e-3, "the weights must change"


@pytest.mark.parametrize("kind", ["fisher", "perturbation"])
def test_a_look_at_the_deployed_weights_changes_nothing(one_layer, classes, kind):
    hand = second_task(one_layer, classes, importance=kind)
    method, task = hand.method, classes.tasks[1]
    training = method.prepare(hand, task)
    P.restore(
        hand.model, {name: value + 1e-3 for name, value in training.begin.items()}
    )  # as after some steps
    hand.model.train()
    training.losses(hand.model, hand.train.collate(range(4)))["task"].backward()
    gradients = {name: weight.grad.clone() for name, weight in P.trainable(hand.model).items()}
    before, state = weights_of(hand), method.state_dict()
    random = torch.get_rng_state()
    first = method.deployed(hand, training, 1)
    assert_same_bits(weights_of(hand), before)
    assert_same_bits({n: w.grad for n, w in P.trainable(hand.model).items()}, gradients)
    for group, own in state.items():
        assert_same_bits(getattr(method, group), own)
    assert hand.model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert_same_bits(training.carried["free"], P.snapshot(hand.model))
    assert_same_bits(method.deployed(hand, training, 2), first)
    assert distance(first, training.carried["free"]) > 0


@pytest.mark.parametrize("kind", ["fisher", "perturbation"])
@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.slow
def test_training_does_not_depend_on_fusion(one_layer, classes, kind, continues, monkeypatch):
    """Without the robustness term, every epoch equals SEQ from the learner's weights, including dropout."""
    hand = second_task(one_layer, classes, importance=kind, continues=continues)
    origin = hand.method.free if continues else hand.start
    seq = make_learner(one_layer, METHODS["seq"](), classes, hand.settings)
    seq.begin(classes.tasks[0])
    P.restore(seq.model, {name: value[:2] if "head." in name else value for name, value in origin.items()})
    plain = seq.begin(classes.tasks[1])
    assert_same_bits(P.snapshot(seq.model), origin)
    ours, theirs = spied(hand, monkeypatch), spied(plain, monkeypatch)
    hand.trial(classes.tasks[1], {"lr": 1e-2})
    plain.trial(classes.tasks[1], {"lr": 1e-2})
    assert len(ours) == len(theirs) == 3
    for epoch, ((deployed, mine), (_, other)) in enumerate(zip(ours, theirs, strict=True)):
        assert_same_bits(mine, other)
        assert epoch == 0 or distance(deployed, mine) > 1e-3, "fusion must have an effect"


def test_the_first_task_without_robustness_is_seq(one_layer, classes):
    seq = make_learner(one_layer, METHODS["seq"](), classes)
    own = make_learner(one_layer, METHODS["rp2f"](lam=0.0), classes, fixed={"lam"})
    for learner in (seq, own):
        learner.learn(classes.tasks[0])
    assert_same_bits(weights_of(seq), weights_of(own))
    assert_same_bits(own.method.free, P.snapshot(own.model))
    robust = make_learner(one_layer, METHODS["rp2f"](lam=1e-3), classes, fixed={"lam"})
    robust.learn(classes.tasks[0])
    assert distance(weights_of(robust), weights_of(own)) > 1e-3


def test_the_robustness_term_is_of_the_sentence_vectors(tiny_bert_dry, classes):
    method = METHODS["rp2f"](lam=0.5)
    learner = make_learner(tiny_bert_dry, method, classes)
    hand = learner.begin(classes.tasks[0])
    batch = hand.train.collate(range(5))
    learner.model.eval()
    terms = method.prepare(hand, classes.tasks[0]).losses(learner.model, batch)
    features = learner.model.features(batch).detach().double()
    assert set(terms) == {"task", "robustness"}
    expected = 0.5 * float(naive_decorrelation(features))
    assert float(terms["robustness"].detach()) == pytest.approx(expected, rel=1e-4)
    method.lam = 0.0
    assert set(method.prepare(hand, classes.tasks[0]).losses(learner.model, batch)) == {"task"}


def test_new_head_rows_are_the_learners(one_layer, classes):
    hand = second_task(one_layer, classes)
    method = hand.method
    assert torch.equal(method.precision[HEAD][2:], torch.zeros(2, 32))
    assert torch.equal(method.free[HEAD][2:], hand.start[HEAD][2:]), "they start equal to the head's own"
    assert method.free[HEAD].shape == (4, 32)
    lesson = hand.learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    deployed = P.snapshot(hand.model)
    for name in (HEAD, "head.linear.bias"):
        assert torch.equal(deployed[name][2:], method.free[name][2:])
        assert (deployed[name][:2] != method.free[name][:2]).all()
        assert (method.precision[name][2:] > 0).all(), "the next task needs their precision"


def test_rows_nobody_has_taught_follow_the_learner(one_layer, classes):
    """Unseen rows of a preallocated head have precision 0 on both sides."""
    hand = second_task(one_layer, classes, small(head="preallocated", epochs=2))
    lesson = hand.learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    assert torch.equal(hand.method.precision[HEAD][4:], torch.zeros(2, 32))
    assert torch.equal(P.snapshot(hand.model)[HEAD][4:], hand.method.free[HEAD][4:])


def test_precision_adds_up_over_tasks(one_layer, domains):
    """Π_k = Σ π of the chosen epochs, measured at the learner's weights, not at the deployed ones."""
    method = METHODS["rp2f"](lr=3e-3, lam=1e-6)
    learner = make_learner(one_layer, method, domains, small(epochs=2), fixed={"lr", "lam"})
    total: P.Params = {}
    for k, task in enumerate(domains):
        lesson = learner.learn(task)
        assert lesson.decision.trial.fit["best_epoch"] > 0, k
        hand = learner.begin(task)  # load its sentences again
        with P.using(learner.model, method.free):
            own = importance.fisher(learner.model, hand.train)
        total = {name: total.get(name, 0) + value for name, value in own.items()}
        for name, value in method.precision.items():
            assert torch.allclose(value, total[name], rtol=1e-3, atol=1e-9), (k, name)
        assert k == 0 or distance(method.free, P.snapshot(learner.model)) > 1e-4


# ---- importance=perturbation --------------------------------------------------------------------------


def test_biases_and_norms_are_running_means_over_tasks(tiny_bert, domains):
    """Example B at full size, with one pass per matrix and epoch."""
    method = METHODS["rp2f"](lr=3e-3, lam=1e-6, importance="perturbation")
    learner = make_learner(tiny_bert, method, domains, small(epochs=2), fixed={"lr", "lam"})
    frees = []
    for k, task in enumerate(domains):
        lesson = learner.learn(task)
        fit = lesson.decision.trial.fit
        assert fit["best_epoch"] > 0, k
        frees.append(method.free)
        deployed = P.snapshot(learner.model)
        flat = [name for name, value in deployed.items() if value.dim() < 2]
        matrices = [name for name in deployed if name not in flat]
        assert len(flat) == 17
        assert len(matrices) == 9
        for name in flat:
            mean = sum(free[name].double() for free in frees) / (k + 1)
            assert torch.allclose(deployed[name].double(), mean, rtol=0, atol=1e-6), name
            assert torch.equal(method.precision[name], torch.full_like(deployed[name], k + 1.0))
        for name in matrices:
            assert (method.precision[name] >= (k + 1) * 0.99e-6).all()
        passes = 9 * 3 * (fit["epochs"] if k else 1)  # on the first task only once, at its end
        assert lesson.chosen_passes["importance"] == {"forward": passes, "backward": passes}
    assert distance(frees[2], deployed) > 1e-3
    assert distance(frees[1], frees[0]) > 1e-3


def test_passes_of_the_fisher(one_layer, classes):
    method = METHODS["rp2f"](lr=1e-2)
    learner = make_learner(one_layer, method, classes, small(epochs=2, batch_size=7), fixed={"lr", "lam"})
    first = learner.learn(classes.tasks[0])
    assert first.decision.trial.passes == {"train": {"forward": 8, "backward": 8}}
    assert first.chosen_passes["importance"] == {"forward": 4, "backward": 4}
    second = learner.learn(classes.tasks[1])
    epochs = second.decision.trial.fit["epochs"]
    assert second.chosen_passes["importance"] == {"forward": 4 * epochs, "backward": 4 * epochs}
    assert second.decision.trial.passes["importance"] == second.chosen_passes["importance"]


def test_passes_end_at_the_limit(tiny_bert, classes, monkeypatch):
    """The counted passes are those that took place."""
    monkeypatch.setattr("holdfast.methods.rp2f.LIMIT", 9)
    hand = second_task(tiny_bert, classes, small(epochs=1, batch_size=5), importance="perturbation")
    calls: list[int] = []
    hand.model.register_forward_hook(lambda *_: calls.append(1))
    with hand.ledger.counting() as passes:
        hand.method.measure(hand)
    assert len(calls) == 9 * 2, "ten samples are more than nine"
    assert passes == {"importance": {"forward": 18, "backward": 18}}


# ---- search -------------------------------------------------------------------------------------------

LAMS = (1e-5, 1e-6, 1e-7)


def tried(learner: Learner, task: Any) -> list[dict[str, float]]:
    return [trial.choice for trial in learner.learn(task).trials]


def grid_learner(
    path: str, stream: Stream, grids: str, fixed: set[str] = frozenset(), **values: Any
) -> Learner:
    own = small(epochs=1, batch_size=24, rates=(1e-2, 1e-3), grids=grids)
    return make_learner(path, METHODS["rp2f"](**values), stream, own, fixed=fixed)


@pytest.mark.slow
def test_the_grid_of_all_pairs(one_layer, classes):
    learner = grid_learner(one_layer, classes, "product")
    pairs = {(lr, lam) for lr in (1e-2, 1e-3) for lam in LAMS}
    for task in classes.tasks[:2]:
        choices = tried(learner, task)
        assert len(choices) == 6
        assert {(choice["lr"], choice["lam"]) for choice in choices} == pairs
        assert all(set(choice) == {"lr", "lam"} for choice in choices)


def test_the_grid_after_the_rate(one_layer, classes):
    learner = grid_learner(one_layer, classes, "after")
    lesson = learner.learn(classes.tasks[0])
    choices = [trial.choice for trial in lesson.trials]
    assert [choice["lam"] for choice in choices] == [1e-5, 1e-5, 1e-6, 1e-7]
    assert [choice["lr"] for choice in choices[:2]] == [1e-2, 1e-3]
    better = max(lesson.trials[:2], key=lambda trial: trial.score).choice["lr"]
    assert {choice["lr"] for choice in choices[2:]} == {better}
    best = max(trial.score for trial in lesson.trials)
    assert lesson.decision.trial.score == best
    assert learner.method.lam == lesson.decision.trial.choice["lam"]


@pytest.mark.parametrize("grids", ["product", "after"])
def test_a_fixed_lambda_is_honoured(one_layer, classes, grids, monkeypatch):
    learner = grid_learner(one_layer, classes, grids, {"lam"}, lam=0.25)
    made = watch_trainings(monkeypatch)
    assert tried(learner, classes.tasks[0]) == [{"lr": 1e-2}, {"lr": 1e-3}]
    assert [one.method.lam for one in made] == [0.25, 0.25]
    assert all("robustness" in one.training.terms for one in made)
    assert learner.method.lam == 0.25


def test_a_fixed_rate_leaves_three_trials(one_layer, classes):
    learner = grid_learner(one_layer, classes, "product", {"lr"}, lr=5e-3)
    assert tried(learner, classes.tasks[0]) == [{"lr": 5e-3, "lam": lam} for lam in LAMS]


# ---- a killed run resumes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rerun_from_trial_files_has_the_same_bits(one_layer, classes, tmp_path, monkeypatch):
    def run(workspace: Path | None) -> Learner:
        own = small(epochs=2, batch_size=12, rates=(1e-2,))
        learner = make_learner(one_layer, METHODS["rp2f"](), classes, own, workspace=workspace)
        for task in classes:
            learner.learn(task)
        return learner

    first = run(tmp_path)
    assert len(list(tmp_path.glob("*.trial"))) == 9

    def refuse(*_: Any) -> None:
        raise AssertionError("trained although the trial was on disk")

    monkeypatch.setattr(AtHand, "_train", refuse)
    again = run(tmp_path)
    assert_same_bits(weights_of(first), weights_of(again))
    for group in ("free", "precision", "current"):
        assert_same_bits(getattr(first.method, group), getattr(again.method, group))
    assert first.method.hparams() == again.method.hparams()
    assert first.method.precision
    assert distance(first.method.free, P.snapshot(first.model)) > 0


def test_a_learner_goes_on_from_its_stored_state(one_layer, classes):
    def begin() -> Learner:
        own = small(epochs=1, batch_size=12)
        return make_learner(one_layer, METHODS["rp2f"](lr=1e-2), classes, own, fixed={"lr", "lam"})

    first, second = begin(), begin()
    for task in classes.tasks[:2]:
        first.learn(task)
    second.load_state(*first.state())
    for learner in (first, second):
        learner.learn(classes.tasks[2])
    assert_same_bits(weights_of(first), weights_of(second))
    assert_same_bits(first.method.free, second.method.free)
    assert_same_bits(first.method.precision, second.method.precision)
