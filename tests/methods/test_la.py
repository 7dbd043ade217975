"""LA: Algorithm 1 compared with naive loops, pooling, options and search."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, naive_alpha, naive_importance, naive_training
from helpers.learners import STREAM, make_learner, scoring, taught
from helpers.toys import small
from helpers.watching import prepared, watch_measures, watch_trainings
from helpers.weights import assert_same_bits, weights_of
from torch import nn

from holdfast.importance.relative import Relative, moved_about
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.methods import METHODS, quadratic
from holdfast.methods.la import LA


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "cf"},
        {"strategy": "kt"},
        {"tau": 0.3},
        {"fraction": 0.5},
        {"modulate_head": True},
    ],
    ids=str,
)
def test_a_main_phase_by_hand(tiny_bert_dry, domains, options):
    """Naive look-ahead, its importance, alpha', then AdamW with the modulated penalty."""
    hand = dry_task(tiny_bert_dry, LA(lr=LR, **options), domains)
    past = hand.method.state_dict()["alpha"]
    ahead = naive_importance(hand, naive_training(hand, P.zeros(past), 0.0))
    lam, lam_max, down, up = 40.0, 900.0, 0.2, 0.5
    alpha = naive_alpha(past, ahead, lam, lam_max, down, up, **options)
    expected = naive_training(hand, alpha, lam)
    choice = {"lr": LR, "lam": lam, "lam_max": lam_max, "down": down, "up": up}
    trial = hand.trial(domains.tasks[1], choice)
    assert trial.fit["best_epoch"] == 1
    assert distance(trial.params, expected) < 3e-3 * LR
    plain = naive_training(hand, past, lam)
    assert distance(plain, expected) > 0.1 * LR, "the modulation must have an effect"
    for name, value in hand.method.alpha.items():
        assert torch.equal(value, past[name]), "alpha' is never written into alpha"


def modulated(values: dict[str, Any], ahead: P.Params, past: P.Params) -> P.Params:
    """Return the weights of the pull for a look-ahead with this importance."""
    method = LA(**values)
    method.alpha = past
    learner = SimpleNamespace(model=nn.Module(), start=P.zeros(past), once=lambda *args, **kwargs: ahead)
    _, pulls = prepared(method, learner, None)
    return pulls["penalty"].weights


@pytest.fixture
def alphas() -> tuple[P.Params, P.Params]:
    generator = torch.Generator().manual_seed(4)
    shapes = {"encoder.a": (5, 4), "encoder.b": (7,), "head.linear.weight": (3, 4)}
    past, ahead = (
        {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        for _ in range(2)
    )
    past["encoder.b"][2] = ahead["encoder.b"][2] = 0.0
    return past, ahead


@pytest.mark.parametrize("strategy", ["balance", "cf", "kt"])
@pytest.mark.parametrize("tau", [None, 0.0, 0.02, 0.5])
@pytest.mark.parametrize("modulate_head", [False, True])
@pytest.mark.parametrize("up", [0.0, 0.3, 1.0])
def test_modulation_entry_by_entry(alphas, strategy, tau, modulate_head, up):
    past, ahead = alphas
    before = [{name: value.clone() for name, value in params.items()} for params in alphas]
    values = {"strategy": strategy, "tau": tau, "modulate_head": modulate_head}
    hparams = {"lam": 2.0, "lam_max": 90.0, "down": 0.4, "up": up}
    found = modulated(values | hparams, ahead, past)
    expected = naive_alpha(past, ahead, 2.0, 90.0, 0.4, up, **values)
    for name in past:
        assert torch.allclose(found[name], expected[name], rtol=1e-12), name
    assert_same_bits(past, before[0])
    assert_same_bits(ahead, before[1])
    assert found["encoder.a"].data_ptr() != past["encoder.a"].data_ptr()


def test_above_the_cutoff_is_held_faster_and_below_is_let_go(alphas):
    past, ahead = alphas
    found = modulated({"lam": 2.0, "lam_max": 90.0, "down": 0.4, "up": 0.0}, ahead, past)
    for name in ("encoder.a", "encoder.b"):
        rho = past[name] / (past[name] + ahead[name] + 1e-10)
        high = rho > 0.8 * rho.mean()
        assert high.any()
        assert not high.all()
        assert (found[name][high] >= past[name][high]).all(), "even at m = 0, since lambda_up >= 1/tau"
        assert (found[name][~high] <= 0.4 * past[name][~high]).all()


# ---- reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["loss", "proximal"])
@pytest.mark.slow
def test_lambda_zero_is_seq_bit_for_bit(one_layer, classes, penalty):
    seq = make_learner(one_layer, METHODS["seq"](), classes)
    la = make_learner(one_layer, METHODS["la"](penalty=penalty), classes, fixed={"lam"})
    for task in classes.tasks[:2]:
        seq.learn(task)
        lesson = la.learn(task)
    assert lesson.decision.trial.choice["lam"] == 0
    assert la.method.alpha
    assert_same_bits(weights_of(seq), weights_of(la))


def test_without_down_it_is_mas(one_layer, classes):
    found = []
    for name in ("mas", "la"):
        learner = make_learner(one_layer, METHODS[name](), classes)
        learner.learn(classes.tasks[0])
        hand = learner.begin(classes.tasks[1])
        found.append(hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": 50.0}).params)
    assert_same_bits(*found)


def test_the_proximal_form_runs(one_layer, classes):
    learner = make_learner(one_layer, LA(penalty="proximal", thr=0.01), classes)
    for task in classes.tasks[:2]:
        lesson = learner.learn(task)
    assert any(trial.choice.get("down") is not None for trial in lesson.trials)
    assert not any(trial.fit["diverged"] for trial in lesson.trials)
    assert all(torch.isfinite(value).all() for value in weights_of(learner).values())


# ---- what it pools ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_true_alphas_are_pooled_never_modified_ones(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, LA(thr=0.01), domains)
    measured = watch_measures(monkeypatch)
    main = 0
    for task in domains:
        lesson = learner.learn(task)
        main += any(trial.choice.get("down") is not None for trial in lesson.trials)
    assert main == 2, "both later tasks must have had a main phase"
    consolidated = [one.found for one in measured if one.to_pool]
    assert len(consolidated) == 3
    for name, value in learner.method.alpha.items():
        mean = sum(alpha[name] for alpha in consolidated) / 3
        assert torch.allclose(value, mean, rtol=1e-5, atol=1e-9), name


@pytest.mark.slow
def test_state_and_weights_share_no_memory(one_layer, classes, monkeypatch):
    learner = make_learner(one_layer, LA(thr=0.01), classes)
    trainings = watch_trainings(monkeypatch)
    for task in classes.tasks[:2]:
        learner.learn(task)
    method, pull = learner.method, trainings[-1].pulls["penalty"]
    state = method.state_dict()["alpha"]
    live = {weight.data_ptr() for weight in P.trainable(learner.model).values()}
    for name, value in method.alpha.items():
        assert state[name].data_ptr() != value.data_ptr()
        assert value.data_ptr() not in live
        assert pull.anchor[name].data_ptr() not in live
        assert value.data_ptr() != pull.weights[name].data_ptr()


# ---- the search ---------------------------------------------------------------------------------------


def test_algorithm_1(one_layer, classes):
    """First the rates, then lambda with the plain importance, then down and up at the chosen lambda."""
    learner = make_learner(one_layer, LA(thr=0.01), classes, small(rates=(1e-2, 1e-3)))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    choices = [trial.choice for trial in lesson.trials]
    assert [set(choice) for choice in choices[:2]] == [{"lr", "lam"}] * 2
    assert [choice["lam"] for choice in choices[:2]] == [0.0, 0.0]
    plain = [choice for choice in choices if choice.get("down") is None]
    main = [trial for trial in lesson.trials if trial.choice.get("down") is not None]
    assert choices[: len(plain)] == plain, "plain trainings come first"
    notes, decided = lesson.decision.notes, lesson.decision.trial
    assert [(t.choice["down"], t.choice["up"]) for t in main] == [
        (1.0, 1.0),
        (0.3, 1.0),
        (0.1, 1.0),
        (0.1, 0.3),
        (0.1, 0.1),
    ][: len(main)]
    if notes["matched"]:
        assert decided is main[-1]
        assert decided.score >= notes["plain"]
        assert all(trial.score < notes["plain"] for trial in main[:-1])
    else:
        assert decided.choice.get("down") is None
        assert decided.score == notes["plain"] > max(trial.score for trial in main)
    lam = decided.choice["lam"]
    assert notes["plain"] == next(t.score for t in lesson.trials if t.choice.get("lam") == lam).real


def test_without_a_match_the_plain_lambda_is_the_result(one_layer, classes):
    """No trial that is worse than the plain lambda's is kept."""
    learner = make_learner(one_layer, LA(thr=0.01), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    decision = scoring(hand, modulated=0.494, plain=0.857).search()
    assert decision.notes["matched"] is False
    assert decision.notes["plain"] == decision.trial.score == 0.857
    assert decision.trial.choice["down"] is None
    assert decision.trial.choice["lam"] > 0


def test_when_saturated_only_down_is_searched(one_layer, classes):
    """At lambda = lambda_max, lambda_up cannot exceed 1/tau."""
    learner = make_learner(one_layer, LA(thr=0.01), classes)
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    assert "saturated" in lesson.decision.notes["flags"]
    assert all(trial.choice["up"] == 1.0 for trial in lesson.trials if trial.choice.get("down") is not None)


@pytest.mark.parametrize("down", [0.0, 0.25])
def test_fixed_down_and_up_make_one_main_training(one_layer, classes, down):
    learner = make_learner(one_layer, LA(down=down, up=0.5, thr=0.01), classes, fixed={"down", "up", "thr"})
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    main = [trial.choice for trial in lesson.trials if trial.choice.get("down") is not None]
    assert [(choice["down"], choice["up"]) for choice in main] == [(down, 0.5)]


def plain_trials(monkeypatch: pytest.MonkeyPatch, learner: Learner, task: Any) -> list[tuple[float, bool]]:
    """Return (lambda, modulated?) for every training of a task without lambda_down in its choice."""
    with monkeypatch.context() as patch:
        trainings = watch_trainings(patch)
        lesson = learner.learn(task)
    seen = []
    for trained in trainings:
        weights = [pull.weights for pull in trained.pulls.values()]
        past = trained.method.alpha.items()
        same = all(torch.equal(one[name], alpha) for one in weights for name, alpha in past)
        seen.append((trained.method.lam, not same))
    return [kind for kind, trial in zip(seen, lesson.trials, strict=True) if trial.choice.get("down") is None]


def test_lambda_is_searched_with_the_plain_importance_at_task_2(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, LA(thr=0.01), domains)
    learner.learn(domains.tasks[0])
    found = plain_trials(monkeypatch, learner, domains.tasks[1])
    assert any(lam > 0 for lam, _ in found)
    assert not any(modulated for lam, modulated in found if lam > 0)


@pytest.mark.slow
def test_lambda_is_searched_with_the_plain_importance_at_task_3(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, LA(thr=0.01), domains)
    for task in domains.tasks[:2]:
        learner.learn(task)
    found = plain_trials(monkeypatch, learner, domains.tasks[2])
    assert any(lam > 0 for lam, _ in found)
    assert not any(modulated for lam, modulated in found if lam > 0)


def test_lambda_is_searched_with_the_plain_importance_when_down_is_fixed(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, LA(down=0.5, up=0.5, thr=0.01), domains, fixed={"down", "up", "thr"})
    learner.learn(domains.tasks[0])
    found = plain_trials(monkeypatch, learner, domains.tasks[1])
    assert any(lam > 0 for lam, _ in found)
    assert not any(modulated for lam, modulated in found if lam > 0)


@pytest.mark.slow
def test_paper_path_respects_the_budget(one_layer, classes):
    learner = make_learner(one_layer, LA(thr=0.01, budget=3), classes, small(loosening="paper", epochs=1))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    main = [trial.choice["down"] for trial in lesson.trials if trial.choice.get("down") is not None]
    assert 1 <= len(main) <= 3
    assert main == pytest.approx([1.0, 0.9, 0.81][: len(main)])


def test_infinite_lambda_needs_no_look_ahead(one_layer, classes):
    learner = make_learner(one_layer, LA(), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    trial = hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": math.inf, "down": 0.5, "up": 1.0})
    assert trial.borrowed == {}


# ---- evidence -----------------------------------------------------------------------------------------


def test_movement_about_the_cutoff_by_hand():
    among = {
        "a": Relative(torch.tensor([0.9, 0.1, 0.5]), 0.5),  # 0.5 is not above the cut-off
        "b": Relative(torch.tensor([[0.8], [0.7]]), 0.5),
    }
    start = {"a": torch.zeros(3), "b": torch.ones(2, 1)}
    trained = {"a": torch.tensor([3.0, 1.0, 2.0]), "b": torch.tensor([[1.0], [4.0]])}
    # above: 3, 0 and 3; below: 1 and 2
    expected = {"rms_above": math.sqrt(18 / 3), "rms_below": math.sqrt(5 / 2)}
    assert moved_about(among, start, trained) == pytest.approx(expected)
    assert moved_about({}, start, trained) == {"rms_above": 0.0, "rms_below": 0.0}


def test_a_study_records_how_far_each_trial_moved(one_layer, classes):
    """The slow way: entry by entry, from the trial's weights, α and the look-ahead's importance."""
    learner = make_learner(one_layer, LA(thr=0.01), classes)
    learner.learn(classes.tasks[0])
    past, start = learner.method.state_dict()["alpha"], P.snapshot(learner.model)
    ahead = {}
    measured = quadratic.measured_ahead

    def kept(*args):
        ahead.update(found := measured(*args))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quadratic, "measured_ahead", kept)
        lesson = learner.learn(classes.tasks[1])
    for trial in lesson.trials:
        weights = trial.params
        known = {
            name: value[: len(start[name])] if "head." in name else value for name, value in weights.items()
        }
        total = sum(
            float(a) * float(now - before) ** 2
            for name in start
            for a, now, before in zip(
                past[name].flatten(), known[name].flatten(), start[name].flatten(), strict=True
            )
        )
        assert trial.evidence["moved"] == pytest.approx(total, rel=1e-4)
        assert trial.summary()["moved"] == trial.evidence["moved"]
        modulated = trial.choice.get("down") is not None
        assert ("rms_above" in trial.evidence) is modulated
        if modulated:
            squares = []
            for name, value in ahead.items():
                if not name.startswith("head."):
                    rho = past[name] / (past[name] + value + 1e-10)
                    high = rho > 0.8 * rho.mean()
                    squares += ((weights[name] - start[name])[high] ** 2).tolist()
            assert trial.evidence["rms_above"] == pytest.approx(
                math.sqrt(sum(squares) / len(squares)), rel=1e-4
            )


def test_in_everyday_use_nothing_is_measured_for_records(tiny_bert):
    learner = taught(tiny_bert, "la", tasks=1)
    task = STREAM.tasks[1]
    lesson = learner.learn(task.train.texts, task.train.labels)
    assert all(trial.evidence == {} for trial in lesson.trials)
