"""The head of `auto`: lifted features, leave-one-out evidence, calibration without old data."""

import math

import numpy
import pytest
import torch
from torch.nn import functional

from holdfast.errors import HoldfastError
from holdfast.heads import LiftedHead, SLDAHead, Taught, calibration
from holdfast.heads.calibration import Seen, set_scores, warmth
from holdfast.heads.discriminant import shrunk
from holdfast.heads.lifted import ALONE, LEFT, PROBES, SCALE, spread_over, usual
from holdfast.heads.sums import ClassSums

NONE = Taught(torch.zeros(0, 6), [])


def blobs(seed: int, each: int = 12, classes: int = 4, width: int = 6, apart: float = 3.0) -> Taught:
    """Return unit vectors of two layers around a centre for each class."""
    centres = apart * torch.randn(classes, width, generator=torch.Generator().manual_seed(77))
    noise = torch.randn(classes * each, width, generator=torch.Generator().manual_seed(seed))
    raw = centres.repeat_interleave(each, 0) + noise
    unit = torch.cat([functional.normalize(one, dim=1) for one in raw.chunk(2, 1)], 1)
    return Taught(unit, [f"class {i // each}" for i in range(classes * each)])


def taught(*parts: Taught, **options: object) -> LiftedHead:
    head = LiftedHead(6, **({"normalised": True, "columns": 15} | options))  # type: ignore[arg-type]
    head.blocks = 2
    for part in parts:
        head.add(part.labels)
        head.teach(part.labels)
        head.take_in(part)
        head.settle(Taught(torch.zeros(0, 6), []), part)
    return head


def some(data: Taught, places: list[int]) -> Taught:
    return Taught(data.features[places], [data.labels[i] for i in places])


def test_the_lift_is_the_vector_and_its_rectified_projections():
    head = taught(blobs(0))
    z = blobs(1).features
    x = head.lift(z)
    assert x.shape == (48, 15)
    assert torch.equal(x[:, :6], SCALE * z)
    assert torch.allclose(x[:, 6:], (z @ head.projection).clamp(min=0) / math.sqrt(2))
    again = LiftedHead(6, normalised=True, columns=15)
    assert torch.equal(again.projection, head.projection), "drawn anew, not stored"
    assert "projection" not in head.statistics()
    assert abs(float(head.projection[0, 0]) - 1.764052345967664) < 1e-6, "numpy's RandomState(0), for good"


def test_the_first_columns_of_the_sums_are_those_of_the_vectors():
    data, plain = blobs(0), ClassSums(6, "pooled")
    head = taught(data)
    plain.grow(4)
    plain.add(SCALE * data.features, head.rows(data.labels))
    assert torch.allclose(head.past.leading(6).moments(), plain.moments())
    assert torch.allclose(head.past.means()[:, :6], plain.means())


def test_usual_shrinkage_by_hand():
    assert usual(100, 100, lifted=False) == 0.7
    assert usual(200, 100, lifted=True) == pytest.approx(0.1 * 2**2.5)
    assert usual(100, 400, lifted=True) == pytest.approx(0.1 / 32)
    assert usual(1000, 100, lifted=False) == 9.0
    assert usual(1000, 10, lifted=True) == 40.0
    assert usual(1000, 0, lifted=False) == 400.0
    head = taught(blobs(0, each=2, classes=3))  # 3 degrees of freedom under 6 columns: 0.7 * 2^2.5 = 3.9598
    assert head.amount((0.0, 0.0, 6.0)) == pytest.approx(3.9598 / 4.9598, abs=1e-5)
    assert head.amount((1.0, 0.0, 6.0)) == pytest.approx(39.598 / 40.598, abs=1e-5)


def test_one_sentence_a_label_by_hand():
    """Means (2, 0), (0, 4), (-2, -1): m = (0, 1), a = (2, -1), (0, 3), (-2, -2), GᵀG = [8 2; 2 14], c = 2.2.

    A = 2.2 [10.2 2; 2 16.2]⁻¹ = 2.2 [16.2 -2; -2 10.2] / 161.24.
    """
    head = LiftedHead(2)
    data = Taught(torch.tensor([[2.0, 0.0], [0.0, 4.0], [-2.0, -1.0]]), ["a", "b", "c"])
    head.add(data.labels)
    head.take_in(data)
    head.settle(Taught(data.features[:0], []), data)
    size = math.sqrt((4 + 16 + 5) / 3)
    # (3, 1) - m = (3, 0); aᵀA(3, 0) and aᵀAa, both times 161.24/2.2
    expected = [
        math.sqrt(2.2 / 161.24) * along / math.sqrt(length) / size
        for along, length in ((103.2, 83.0), (-18.0, 91.8), (-85.2, 89.6))
    ]
    new = torch.tensor([[3.0, 1.0]])
    assert head(new)[0].tolist() == pytest.approx(expected, abs=1e-6)
    held = head.outside(Taught(new, ["b"]), Taught(data.features[:0], []), head.chosen)
    assert held.scores[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert head.temperature == ALONE
    assert not head.calibrated


@pytest.mark.parametrize("blocks", [1, 2])
def test_one_sentence_a_label_answers_by_the_angle_around_the_mean(blocks):
    """The slow witness: the angle in the metric of the inverse, the last of two layers stretched before."""
    data, new = blobs(0, each=1, classes=12, apart=1.0), blobs(1, each=50, classes=12, apart=1.0)
    head = LiftedHead(6)
    head.blocks = blocks
    head.add(data.labels)
    head.take_in(data)
    head.settle(NONE, data)
    stretch = torch.tensor([1.0] * 6 if blocks == 1 else [1.0] * 3 + [1.5] * 3).double()
    middle = data.features.double().mean(0)
    a, x = (stretch * (one.features.double() - middle) for one in (data, new))
    inverse = torch.linalg.inv(a.T @ a + 0.1 * a.square().sum() * torch.eye(6).double())
    angles = x @ inverse @ a.T / (a @ inverse @ a.T).diagonal().sqrt()
    assert head.predict(new.features) == [data.labels[i] for i in angles.argmax(1)]
    more = some(blobs(2, each=1, classes=12), [0])  # one label has a second sentence
    head.take_in(more)
    head.settle(NONE, more)
    assert not head.alone
    assert math.isfinite(head.temperature)


def test_the_noise_of_means_is_the_trace_of_two_covariances():
    """The slow witness: E |μ̂ - μ|², n times, with the trace itself instead of its estimate."""
    head = taught(blobs(0, each=20))
    for option in (head.options[0], head.options[-1]):
        spread, e = head._covariance(option), head.amount(option)
        metric = torch.linalg.inv(shrunk(spread, e))
        trace = float((metric @ spread).trace())
        expected = 0.5 * trace / (1 - (1 - e) * trace / head.free)
        assert head._noise(option, head._factor(option)) == pytest.approx(expected, rel=0.1)


def test_labels_with_few_sentences_are_answered_as_often_as_they_occur():
    """40 sentences of two labels, two of the other two: on new sentences all four are found about alike."""
    rich = blobs(0, each=40, width=30, apart=0.6)
    few = [i for i, label in enumerate(rich.labels) if label in ("class 0", "class 1") or i % 40 < 2]
    head = LiftedHead(30, shrinkage=0.1)
    data = some(rich, few)
    head.add(data.labels)
    head.take_in(data)
    head.settle(Taught(rich.features[:0], []), data)
    new = blobs(7, each=200, width=30, apart=0.6)
    answers = head.predict(new.features)
    rare = sum(answer in ("class 2", "class 3") for answer in answers) / len(answers)
    assert 0.35 < rare < 0.65


def test_a_first_label_alone_is_answered():
    head = taught(some(blobs(0), [0]))
    assert head.predict(blobs(0).features) == ["class 0"] * 48
    assert torch.isfinite(head(blobs(0).features)).all()


@pytest.mark.parametrize("columns", [6.0, 15.0])
def test_scores_are_those_of_slda_up_to_a_constant_per_sentence(columns):
    data, new = blobs(0), blobs(5)
    data = Taught(data.features.double(), data.labels)
    head, option = taught(data), (0.0, 0.0, columns)
    plain = SLDAHead(int(columns), shrinkage=head.amount(option))
    lifted = head.lift(data.features.double())[:, : int(columns)]
    plain.add(data.labels)
    plain.take_in(Taught(lifted, data.labels))
    weight, bias = plain.solve(plain.chosen)
    expected = head.lift(new.features.double())[:, : int(columns)] @ weight.T + bias
    found = head.outside(new, NONE, option).scores
    difference = found - expected
    assert torch.allclose(difference, difference[:, :1].expand_as(difference), rtol=1e-5, atol=1e-6)
    head.chosen = option
    head.changed()
    assert torch.allclose(head(new.features).double(), found, atol=1e-3)


@pytest.mark.parametrize("columns", [6.0, 15.0])
@pytest.mark.parametrize("step", [-1.0, 1.0])
def test_scores_without_a_sentence_are_those_of_sums_without_it(columns, step):
    """The slow witness: recompute mean and scatter without each sentence; divisor and trace stay."""
    data = blobs(0, each=7)
    head, option, used = taught(data), (step, 0.0, columns), int(columns)
    x, rows = head.lift(data.features.double())[:, :used], head.rows(data.labels)
    e, free = head.amount(option), head.free
    means = torch.stack([x[rows == k].mean(0) for k in range(4)])
    trace = float((x - means[rows]).square().sum()) / free
    middle = means.mean(0)
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        own = torch.stack([x[rest & (rows == k)].mean(0) for k in range(4)])
        deviations = (x - own[rows])[rest]
        spread = deviations.T @ deviations / free
        inverse = torch.linalg.inv((1 - e) * spread + e * trace / used * torch.eye(used).double())
        noise = head._noise(option, head._factor(option))
        expected = [
            (m - middle) @ inverse @ (x[i] - middle - 0.5 * (m - middle)) + noise / (7 - (k == int(rows[i])))
            for k, m in enumerate(own)
        ]
        found = head.outside(NONE, some(data, [i]), option).scores[0]
        # Values reach hundreds; a small e leaves the inverse poorly conditioned.
        assert torch.allclose(found, torch.stack(expected), rtol=1e-6, atol=1e-4), i
        held = head.outside(some(data, [0]), some(data, [i]), option).scores
        assert torch.allclose(held[1], found), "whatever else is scored"
        single = head.outside(NONE, some(data, [i]), option, head._covariance(option).float()).scores[0]
        assert torch.allclose(single, found, rtol=1e-3, atol=1e-2)


def test_scores_without_a_sentence_by_hand():
    """One dimension, classes {0, 2} and {10, 14}, e = 0: without 14, S_w = 2, N - K = 2, variance 1.

    T = 1, so that t/2 = 0.5 / (1 - 1/2) = 1: 1/2 is added for two sentences, 1 for the one that is left.
    """
    head = LiftedHead(1, shrinkage=1e-6)
    data = Taught(torch.tensor([[0.0], [2.0], [10.0], [14.0]]), ["a", "a", "b", "b"])
    head.add(data.labels)
    head.take_in(data)
    found = head.outside(Taught(data.features[:0], []), some(data, [3]), head.options[0]).scores[0]
    # Means 1 and 10 about 6.5: (-5.5)(7.5) - 5.5²/2 and (3.5)(7.5) - 3.5²/2.
    assert found.tolist() == pytest.approx([-55.875, 21.125], rel=1e-4)


def slow_distance(z: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, drop: int | None) -> float:
    """Return the relative Mahalanobis distance of z from data x, without one sentence of it."""
    keep = torch.ones(len(x), dtype=torch.bool)
    classes = int(rows.max()) + 1
    free, n = len(x) - classes, len(x)
    whole = torch.stack([x[rows == k].mean(0) for k in range(classes)])
    traces = ((x - whole[rows]).square().sum() / free, (x - x.mean(0)).square().sum() / n)
    if drop is not None:
        keep[drop] = False
    means = torch.stack([x[keep & (rows == k)].mean(0) for k in range(classes)])
    within, around = (x - means[rows])[keep], (x - x[keep].mean(0))[keep]
    d = x.shape[1]

    def inverse(scatter: torch.Tensor, trace: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(0.9 * scatter + 0.1 * trace / d * torch.eye(d).double())

    near = inverse(within.T @ within / free, traces[0])
    far = inverse(around.T @ around / n, traces[1])
    centre = z - x[keep].mean(0)
    return float(min((z - m) @ near @ (z - m) for m in means) - centre @ far @ centre)


def test_distances_are_relative_and_of_the_last_layer():
    data, new = blobs(0), blobs(9)
    head = taught(data)
    x, rows = SCALE * data.features.double()[:, 3:], head.rows(data.labels)
    expected = [slow_distance(SCALE * z, x, rows, None) for z in new.features.double()[:, 3:]]
    assert head.distances(new.features).tolist() == pytest.approx(expected, abs=1e-6)
    left = [slow_distance(x[i], x, rows, i) for i in range(len(x))]
    assert head.relative.of(head.scale * data.features[:, 3:].double(), rows).tolist() == pytest.approx(
        left, abs=1e-6
    )


def test_any_order_and_any_merge_gives_the_same_head():
    data = blobs(0)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(3)).tolist()
    whole = taught(data, shrinkage=0.05)
    parts = [some(data, sorted(order[:20])), some(data, sorted(order[20:]))]
    halves = taught(*parts, shrinkage=0.05)
    merged = taught(parts[0], shrinkage=0.05)
    merged.merge(taught(parts[1], shrinkage=0.05))
    new, option = blobs(5), (0.0, 0.0, 15.0)
    expected = whole.outside(new, NONE, option).scores
    columns = [whole.labels.index(label) for label in halves.labels]
    for other in (halves, merged):
        assert torch.allclose(other.outside(new, NONE, option).scores, expected[:, columns], atol=1e-7)


def test_exact_sums_forget_a_label_as_if_never_learnt():
    data = blobs(0)
    kept = some(data, [i for i, label in enumerate(data.labels) if label != "class 1"])
    head = taught(data, scatter="per-class", shrinkage=0.1)
    assert not head.rich
    traces = head.forget("class 1")
    assert "pooled" not in traces
    clean = taught(kept, scatter="per-class", shrinkage=0.1)
    new = blobs(5)
    assert torch.allclose(head(new.features), clean(new.features), atol=1e-5)


def test_random_features_are_dropped_when_the_encoder_moves():
    data, new = blobs(0), blobs(5)
    head, move = taught(data), 0.1 * torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    head.carry(move)
    assert not head.rich
    assert all(option[2] == 6.0 for option in [head.chosen])
    moved = Taught((data.features.double() @ (torch.eye(6) + move).double()).float(), data.labels)
    plain = taught(moved, columns=0)
    plain.chosen = head.chosen
    # Scores do not depend on the scale of the features.
    assert torch.allclose(head(new.features), plain(new.features), atol=1e-3)
    again = taught(blobs(3))
    again.load_statistics(head.statistics())
    assert torch.equal(again(new.features), head(new.features))


def test_evidence_only_overrules_the_usual_choice_when_it_is_clear():
    head = taught(blobs(0, each=40))
    assert head.evidence[0] == 160
    assert head.chosen[2] == 15.0, "more sentences than columns"
    few = taught(blobs(0, each=2, classes=3))
    assert few.chosen[2] == 6.0
    usual_choice = head.chosen
    head.evidence[1:] = 0.0
    head.evidence[1 + head.options.index((1.0, 0.0, 6.0))] = 160.0
    head.settle(Taught(torch.zeros(0, 6), []))
    assert head.chosen == (1.0, 0.0, 6.0) != usual_choice


def test_set_scores_by_hand():
    found = set_scores(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.5]))
    assert found[0].tolist() == pytest.approx([0.9, 0.25, 0.65])


def test_the_warmth_has_the_highest_likelihood():
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(400, 5, generator=generator).double()
    gold = torch.multinomial((scores / 2.5).softmax(1), 1, generator=generator).squeeze(1)
    assert math.exp(warmth(Seen(scores, gold, scores[:, 0]))) == pytest.approx(2.5, rel=0.25)


def test_marks_follow_the_labels_that_arrive_later():
    """Thresholds and temperature stay right although they were compared when there were fewer labels."""
    every, fresh = blobs(0, each=60, classes=12, apart=1.5), blobs(1, each=200, classes=12, apart=1.5)
    lessons = [
        some(every, [i for i, label in enumerate(every.labels) if int(label.split()[1]) // 3 == part])
        for part in range(4)
    ]
    head = taught(*lessons)
    inside, early = head.distances(fresh.features), taught(lessons[0])
    for keep in (0.8, 0.9, 0.95):
        kept, stale = (float((inside <= one.threshold(keep)).double().mean()) for one in (head, early))
        assert kept == pytest.approx(keep, abs=0.06)
        assert abs(kept - keep) < 0.6 * abs(stale - keep), "thresholds of the first lesson are stale"
    likely = (head(fresh.features).double() / head.temperature).softmax(1)
    gold = head.rows(fresh.labels)
    right = (likely.argmax(1) == gold).double().mean()
    assert float(likely.max(1).values.mean()) == pytest.approx(float(right), abs=0.05)
    part = torch.rand(len(gold), generator=torch.Generator().manual_seed(5)).double()
    scores = set_scores(likely, part).gather(1, gold[:, None]).squeeze(1)
    for cover in (0.8, 0.9, 0.95):
        covered = float((scores <= head.set_threshold(cover)).double().mean())
        assert covered == pytest.approx(cover, abs=0.06)


def test_thresholds_need_two_labels_and_sentences_that_differ():
    head = taught(blobs(0, each=1))
    with pytest.raises(HoldfastError, match="needs two labels"):
        head.threshold(0.9)
    with pytest.raises(HoldfastError, match="about 20 sentences"):
        taught(blobs(0, each=4)).threshold(0.9)
    assert taught(blobs(0, each=5)).threshold(0.9)
    with pytest.raises(HoldfastError, match=r"between 0\.5 and 0\.99"):
        taught(blobs(0)).threshold(0.3)


def test_left_out_sentences_are_spread_and_do_not_depend_on_their_order():
    data = blobs(0)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1)).tolist()
    one, other = spread_over(data, 10), spread_over(some(data, order), 10)
    assert one.labels == other.labels
    assert torch.equal(one.features, other.features)
    assert len(set(one.labels)) == 4


def test_the_number_of_measures_is_that_of_the_marks():
    assert len(taught(blobs(0)).marks) == calibration.MEASURES == 1 + 2 * len(calibration.LEVELS)


# ---- what an attack found -----------------------------------------------------------------------------


def test_a_head_whose_encoder_moved_fits_a_new_head():
    head, other = taught(blobs(0)), taught(blobs(3))
    head.carry(torch.zeros(6, 6))
    assert other.misfit(head.statistics()) == ""
    assert other.rich, "checking changes nothing"
    other.load_statistics(head.statistics())
    other.become(head.labels, head.seen)
    assert other.rich, "a reset head is as wide as it was made"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chosen", [0.0, 0.0, 3.0]),
        ("chosen", [0.0, 7.0, 6.0]),
        ("chosen", [500.0, 0.0, 6.0]),
        ("evidence", [1.0]),
        ("evidence", [-1.0] * 7),
        ("marks", [-1.0] + [0.0] * 22),
        ("offsets", [1.0, 1e6] + [0.0] * 22),
    ],
)
def test_values_that_no_lesson_leaves_are_refused(name, value):
    head = taught(blobs(0))
    statistics = head.statistics() | {name: torch.tensor(value, dtype=torch.float64)}
    assert head.misfit(statistics) == name
    assert head.misfit(head.statistics()) == ""


def test_heads_with_other_options_are_not_merged():
    head, other = taught(blobs(0)), taught(blobs(1), shrinkage=0.1)
    counts = head.past.counts.clone()
    with pytest.raises(HoldfastError, match="cannot be merged"):
        head.merge(other)
    assert torch.equal(head.past.counts, counts)


def test_forgetting_leaves_the_pooled_covariance_as_it_is():
    head = taught(blobs(0, each=20))
    before = head.past.covariance()
    for gone in ("class 1", "class 3"):
        head.forget(gone)
    assert torch.allclose(head.past.covariance(), before, atol=1e-9)
    assert head.labels == ["class 0", "class 2"]
    head.forget("class 0")
    head.forget("class 2")
    assert not head.visible_rows()


def test_small_lessons_add_up_to_a_threshold():
    head = taught(blobs(0, each=4))
    assert float(head.offsets[0]) == 16
    assert not head.tested
    more = blobs(1, each=5)
    head.take_in(more)
    head.settle(NONE, more)
    assert head.threshold(0.95) > head.threshold(0.8)


def test_parts_are_about_as_large_as_asked_and_hold_every_sentence():
    seen = calibration.Seen(torch.zeros(100, 2), torch.arange(100), torch.arange(100.0))
    parts = seen.parts(30)
    assert [len(part.gold) for part in parts] == [34, 33, 33]
    assert sorted(torch.cat([part.gold for part in parts]).tolist()) == list(range(100))
    assert len(seen.parts(1)) == calibration.PARTS
    assert len(seen.parts(500)) == 1


def test_equal_sentences_under_two_labels_are_learnt():
    data = Taught(blobs(0).features[:1].repeat(6, 1), ["a", "b"] * 3)
    head = taught(data)
    assert torch.isfinite(head(data.features)).all()
    assert torch.isfinite(head.distances(blobs(1).features)).all()


def test_thresholds_rise_with_what_they_keep():
    for data in (blobs(0, each=2), blobs(0, each=40), some(blobs(0), [0, 12, 13])):
        marks = taught(data).marks[1:]
        assert all((part.diff() >= 0).all() for part in marks.chunk(2))


def test_scores_without_a_sentence_under_class_covariances_of_equal_weight():
    data = some(blobs(0, each=20), [*range(20), *range(20, 24), *range(40, 44), *range(60, 66)])
    head = taught(data, scatter="per-class", weighting="covariance", shrinkage=0.1)
    x, rows, option = data.features.double(), head.rows(data.labels), head.options[0]
    sizes = head.past.counts
    for i in (0, 21, 30):
        rest = torch.arange(len(x)) != i
        own = torch.stack([x[rest & (rows == k)].mean(0) for k in range(4)])
        whole = torch.stack([x[rows == k].mean(0) for k in range(4)])
        spread = torch.zeros(6, 6).double()
        for k in range(4):
            deviations = (x - own[rows])[rest & (rows == k)]
            spread += deviations.T @ deviations / (4 * sizes[k])
        trace = sum(
            float((x - whole[rows])[rows == k].square().sum()) / (4 * float(sizes[k])) for k in range(4)
        )
        inverse = torch.linalg.inv(0.9 * spread + 0.1 * trace / 6 * torch.eye(6).double())
        middle = whole.mean(0)
        noise, left = head._noise(option, head._factor(option)), sizes - (torch.arange(4) == rows[i]).double()
        expected = [
            (m - middle) @ inverse @ (x[i] - middle - 0.5 * (m - middle)) + noise / left[k]
            for k, m in enumerate(own)
        ]
        found = head.outside(NONE, some(data, [i]), option).scores[0]
        assert torch.allclose(found, torch.stack(expected), atol=1e-6), i


def test_loading_what_the_head_holds_keeps_what_it_has_solved():
    head = taught(blobs(0))
    statistics = {name: one.clone() for name, one in head.statistics().items()}
    head(blobs(1).features)
    solved = head._solved
    head.load_statistics(statistics)
    assert head._solved is solved
    head.load_statistics(taught(blobs(2)).statistics())
    assert head._solved is not solved
    assert torch.allclose(head(blobs(1).features), taught(blobs(2))(blobs(1).features))


def test_distances_of_few_sentences_are_shrunk_more():
    head = taught(blobs(0, each=2, classes=3))
    assert head.relative.shrinkage == pytest.approx(0.7 / 1.7), (
        "3 degrees of freedom, 3 columns of the last layer"
    )
    assert taught(blobs(0)).relative.shrinkage == 0.1


def test_a_trial_that_is_adopted_is_not_solved_again():
    head, new = taught(blobs(0)), blobs(5).features
    start = head.statistics()
    before = head(new)
    head.take_in(blobs(1))
    head.settle(NONE, blobs(1))
    trial, after, solved = head.statistics(), head(new), head._solved
    head.load_statistics(start)
    assert torch.equal(head(new), before), "the sums of the trial were left whole"
    head.load_statistics({name: tensor.clone() for name, tensor in trial.items()})
    assert head._solved is solved
    assert torch.equal(head(new), after)
    head.load_statistics(start)
    head.take_in(blobs(2))  # nothing comes back after a change
    assert head._left is None
    head.load_statistics(trial)
    assert torch.equal(head(new), after)


def test_the_noise_of_the_means_is_that_of_the_trace_of_both_covariances():
    """(1-e) T = d - e v tr(Σ_e⁻¹): the estimate is sᵀ Σ_e⁻¹ Σ s, averaged over the same signs."""
    head = taught(blobs(0))
    for option in head.options:
        spread, e = head._covariance(option), head.amount(option)
        signs = torch.from_numpy(numpy.random.RandomState(0).randint(0, 2, (len(spread), PROBES)) * 2.0 - 1.0)
        trace = float((torch.linalg.solve(shrunk(spread, e), signs) * (spread @ signs)).sum()) / PROBES
        expected = 0.5 * trace / max(1 - (1 - e) * trace / head.free, LEFT)
        assert head._noise(option, head._factor(option)) == pytest.approx(expected, rel=1e-9)
