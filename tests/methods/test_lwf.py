"""LwF: worked examples of distillation, its loss, and naive trainings."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, second_task
from helpers.distilling import (
    STREAMS,
    Table,
    losses_under,
    naive_epoch,
    naive_kd,
    question,
    row,
    softened,
    some,
    teaching,
)
from helpers.toys import small
from helpers.watching import teachers_of, watch_trainings
from helpers.weights import assert_same_bits

from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.maths.losses import IGNORED, distillation
from holdfast.methods.lwf import LwF, Teacher

# ---- distillation: specs/lwf.md, section 8 ------------------------------------------------------------

Z, Z_OLD = row(2.0, 1.0, 0.1), row(1.5, 1.2, -0.3)
FOUR, FOUR_OLD = row(1.0, 0.2, 0.8, -0.4), row(1.4, -0.1, 0.05, 0.02)


def test_example_a_value_and_gradient():
    student = Z.clone().requires_grad_()
    value = distillation(student, Z_OLD, some(1))
    assert value.item() == pytest.approx(1.04994284, abs=3e-7)
    value.backward()
    assert student.grad[0].tolist() == pytest.approx([0.03031509, -0.03766639, 0.00735130], abs=1e-7)
    assert distillation(Z_OLD, Z_OLD, some(1)).item() == pytest.approx(1.03691167, abs=3e-7)
    assert (value - distillation(Z_OLD, Z_OLD, some(1))).item() == pytest.approx(0.01303117, abs=3e-7)


@pytest.mark.parametrize(("rows", "expected"), [([0, 1], 0.64134377), ([0, 1, 2, 3], 1.36024022)])
def test_example_b_over_past_and_over_all_outputs(rows, expected):
    assert distillation(FOUR[:, rows], FOUR_OLD[:, rows], some(1)).item() == pytest.approx(expected, abs=3e-7)


def test_example_c_identity_has_no_gradient():
    student = Z_OLD.clone().requires_grad_()
    value = distillation(student, Z_OLD, some(1))
    value.backward()
    assert student.grad.abs().max() <= 3e-8
    q = softened(Z_OLD, 2.0)
    assert value.item() == pytest.approx(-(q * q.log()).sum().item(), abs=3e-7), (
        "the minimum is the teacher's entropy, not 0"
    )


@pytest.mark.parametrize("shift", [-40.0, 3.0, 40.0])
def test_example_d_a_constant_changes_nothing(shift):
    plain = distillation(Z, Z_OLD, some(1)).item()
    assert distillation(Z, Z_OLD + shift, some(1)).item() == pytest.approx(plain, abs=3e-6)
    assert distillation(Z + shift, Z_OLD, some(1)).item() == pytest.approx(plain, abs=3e-6)
    uneven = Z_OLD + torch.tensor([shift, 0.0, 0.0])
    assert distillation(Z, uneven, some(1)).item() != pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_there_is_no_factor_of_squared_temperature(temperature):
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(6, 5, generator=generator).requires_grad_()
    teacher = torch.randn(6, 5, generator=generator)
    value = distillation(student, teacher, some(6), temperature)
    assert value.item() == pytest.approx(naive_kd(student, teacher, temperature).item(), rel=1e-6)
    value.backward()
    expected = (softened(student.detach(), temperature) - softened(teacher, temperature)) / temperature / 6
    assert torch.allclose(student.grad, expected, atol=1e-7)


def test_samples_that_fill_up_a_batch_do_not_count():
    generator = torch.Generator().manual_seed(1)
    student = torch.randn(5, 4, generator=generator).requires_grad_()
    teacher = 3 * torch.randn(5, 4, generator=generator)
    labels = torch.tensor([2, IGNORED, 0, 1, IGNORED])
    real = [0, 2, 3]
    value = distillation(student, teacher, labels)
    assert value.item() == pytest.approx(naive_kd(student[real], teacher[real]).item(), rel=1e-6)
    assert value.item() != pytest.approx(naive_kd(student, teacher).item(), rel=1e-2)
    value.backward()
    assert not student.grad[[1, 4]].any()
    assert student.grad[real].all()


def test_answers_far_apart_stay_finite():
    value = distillation(row(0.0, -4000.0, 0.0), row(-500.0, 500.0, 0.0), some(1))
    assert value.item() == pytest.approx(2000 + math.log(2), rel=1e-5)


def test_half_precision_is_distilled_in_single():
    exact = distillation(Z.half().float(), Z_OLD.half().float(), some(1))
    assert torch.equal(distillation(Z.half(), Z_OLD.half(), some(1)), exact)


# ---- the loss -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [1.0, 0.25])
def test_example_a_in_the_whole_loss(lam):
    model = Table(Z)
    teachers = {"distillation": Teacher({"z": Z_OLD}, [0, 1, 2], lam)}
    terms = losses_under(model, teachers, question(2, 3), LwF().temperature)
    assert set(terms) == {"task", "distillation"}
    assert terms["task"].item() == pytest.approx(2.31703002, abs=3e-7)
    assert terms["distillation"].item() == pytest.approx(lam * 1.04994284, abs=3e-7)
    assert sum(terms.values()).item() == pytest.approx(
        {1.0: 3.36697286}.get(lam, 2.31703002 + lam * 1.04994284), abs=1e-6
    )
    terms["distillation"].backward()
    expected = [lam * g for g in (0.03031509, -0.03766639, 0.00735130)]
    assert model.z.grad[0].tolist() == pytest.approx(expected, abs=1e-7), "the teacher is a constant"


def jolted(hand: AtHand) -> None:
    """Change the model, so that student and teacher differ."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in P.trainable(hand.model).values():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)


def test_the_prior_of_the_balanced_softmax_is_not_distilled(tiny_bert_dry, classes):
    hand = second_task(tiny_bert_dry, LwF(lam=3.0, outputs="all"), classes)
    training = hand.method.prepare(hand, classes.tasks[1])
    batch = hand.train.collate(range(8))
    hand.model.eval()
    with torch.no_grad():
        old = hand.model(batch).logits
        jolted(hand)
        new = hand.model(batch).logits
    term = training.losses(hand.model, batch)["distillation"].item()
    assert term == pytest.approx(3 * naive_kd(new, old).item(), rel=1e-5)
    prior = torch.tensor([1.0, 1.0, 12.0, 12.0]).log()
    assert torch.equal(batch.objective.log_prior, prior), "there is a prior"
    for shifted in (
        naive_kd(new + prior, old),
        naive_kd(new, old + prior),
        naive_kd(new + prior, old + prior),
    ):
        assert abs(3 * shifted.item() - term) > 1e-2


# ---- whole trainings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "outputs", "temperature", "rows"),
    [
        ("classes", "past", 2.0, [0, 1]),
        ("classes", "past", 5.0, [0, 1]),
        ("classes", "all", 2.0, [0, 1, 2, 3]),
        ("domains", "past", 2.0, [0, 1]),
    ],
)
def test_a_training_by_hand(tiny_bert_dry, stream, outputs, temperature, rows, monkeypatch):
    tasks, lam = STREAMS[stream]().tasks, 30.0
    method = LwF(lr=LR, outputs=outputs, temperature=temperature)
    hand = dry_task(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start = P.snapshot(hand.model)
    expected = naive_epoch(hand, teaching(hand, start, rows, lam, temperature))
    made = watch_trainings(monkeypatch)
    trial = hand.trial(tasks[1], {"lr": LR, "lam": lam})
    [trained] = made
    assert trained.teachers["distillation"].rows == rows
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 5e-3 * LR
    assert distance(naive_epoch(hand), expected) > 0.1 * LR, "the teacher must have an effect"
    others = {"T": teaching(hand, start, rows, lam, temperature + 1)}
    if stream == "classes":
        wrong = {"past": [0, 1, 2, 3], "all": [0, 1]}[outputs]
        others["rows"] = teaching(hand, start, wrong, lam, temperature)
    for what, other in others.items():
        assert distance(naive_epoch(hand, other), expected) > 0.05 * LR, f"{what} must have an effect"


def test_on_shared_labels_past_outputs_are_all_outputs(tiny_bert, domains):
    ends = []
    for outputs in ("past", "all"):
        hand = second_task(tiny_bert, LwF(outputs=outputs), domains)
        ends.append(hand.trial(domains.tasks[1], {"lr": 1e-2, "lam": 5.0}).params)
    assert_same_bits(*ends)


@pytest.mark.parametrize("outputs", ["past", "all"])
def test_the_rows_of_a_preallocated_head_are_found_by_label(tiny_bert, classes, outputs):
    method = LwF(lam=1.0, outputs=outputs)
    hand = second_task(tiny_bert, method, classes, small(head="preallocated"))
    labels = hand.model.head.labels
    assert len(labels) == 6
    rows = teachers_of(method, hand, classes.tasks[1])["distillation"].rows
    expected = classes.tasks[0].labels if outputs == "past" else classes.labels
    assert sorted(labels[i] for i in rows) == sorted(expected)
