"""LwF: distillation by worked examples, its loss, and trainings worked out by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, class_stream, domain_stream, make_learner, small
from test_mas import LR, distance, dry_learner
from torch import Tensor, nn

from holdfast.data.batches import Batch
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.losses import IGNORED, Objective, distillation
from holdfast.methods.lwf import LwF, Teacher
from holdfast.models.classifier import Output

STREAMS = {"classes": class_stream, "domains": domain_stream}


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def some(n: int) -> Tensor:
    """Labels of n samples that count."""
    return torch.zeros(n, dtype=torch.long)


def softened(logits: Tensor, temperature: float) -> Tensor:
    powers = (logits / temperature).exp()
    return powers / powers.sum(1, keepdim=True)


def naive_kd(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """-Σ q(z°) log q(z), the mean over the samples, term by term."""
    q, p = softened(teacher, temperature), softened(student, temperature)
    return -(q * p.log()).sum(1).mean()


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
        "the teacher's entropy, not 0"
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


class Table(nn.Module):
    """A model whose answer to anything is its one weight."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.z = nn.Parameter(logits.clone())

    def forward(self, batch: Batch) -> Output:
        loss = batch.objective(self.z, batch.labels) if batch.objective is not None else None
        return Output(self.z, self.z, loss)


def question(label: int, outputs: int) -> Batch:
    """One sample, scored by plain cross-entropy."""
    ones = torch.ones(1, 1, dtype=torch.long)
    return Batch(ones, ones, torch.tensor([label]), Objective(torch.zeros(outputs), torch.ones(outputs)))


def seated(method: LwF, model: nn.Module, teachers: dict[str, Teacher]) -> LwF:
    """A method about to train this model under these teachers."""
    method.model, method.teachers, method.count = model, teachers, lambda *args, **kwargs: None
    return method


@pytest.mark.parametrize("lam", [1.0, 0.25])
def test_example_a_in_the_whole_loss(lam):
    model = Table(Z)
    method = seated(LwF(), model, {"distillation": Teacher({"z": Z_OLD}, [0, 1, 2], lam)})
    terms = method.losses(model, question(2, 3))
    assert set(terms) == {"task", "distillation"}
    assert terms["task"].item() == pytest.approx(2.31703002, abs=3e-7)
    assert terms["distillation"].item() == pytest.approx(lam * 1.04994284, abs=3e-7)
    assert sum(terms.values()).item() == pytest.approx(
        {1.0: 3.36697286}.get(lam, 2.31703002 + lam * 1.04994284), abs=1e-6
    )
    terms["distillation"].backward()
    expected = [lam * g for g in (0.03031509, -0.03766639, 0.00735130)]
    assert model.z.grad[0].tolist() == pytest.approx(expected, abs=1e-7), "the teacher is a constant"


def second_task(
    path: str, method: Any, stream: Any, settings: Any = None, fixed: set[str] = frozenset()
) -> Learner:
    """A learner at the start of the second task, as if it had learnt the first."""
    learner = make_learner(path, method, stream, settings, fixed=fixed)
    learner.begin(stream.tasks[0])
    learner.tasks_seen = 1
    learner._begin_anew()
    learner.begin(stream.tasks[1])
    return learner


def jolted(learner: Learner) -> None:
    """Move the model, so that student and teacher differ."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in P.trainable(learner.model).values():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)


def test_the_prior_of_the_balanced_softmax_is_not_distilled(tiny_bert_dry, classes):
    method = LwF(lam=3.0, outputs="all")
    learner = second_task(tiny_bert_dry, method, classes)
    method.before_task(learner, classes.tasks[1])
    batch = learner.train.collate(range(8))
    learner.model.eval()
    with torch.no_grad():
        old = learner.model(batch).logits
        jolted(learner)
        new = learner.model(batch).logits
    term = method.losses(learner.model, batch)["distillation"].item()
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

Term = Callable[[nn.Module, Tensor, Batch], Tensor]
Hook = Callable[[torch.optim.Optimizer, dict[str, Any], int], None]


def naive_task_loss(learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
    """Relaxed balanced softmax or class-weighted cross-entropy, from the counts."""
    counts, head = learner._task.train.counts(), learner.model.head
    if learner.scenario == "class-incremental":
        prior = torch.tensor([float(counts[name] or name in head.seen) for name in head.labels])
        shifted = logits + prior.log()
        return (shifted.logsumexp(1) - shifted[range(len(labels)), labels]).mean()
    weights = torch.tensor([counts.total() / (len(counts) * counts[name]) for name in head.labels])[labels]
    each = logits.logsumexp(1) - logits[range(len(labels)), labels]
    return (weights * each).sum() / weights.sum()


def naive_epoch(learner: Learner, *terms: Term, after: Hook | None = None) -> P.Params:
    """One epoch of torch's AdamW on a copy of the model; `after` is called behind every step."""
    student = copy.deepcopy(learner.model).eval()  # no dropout anyway
    params = {name: weight for name, weight in student.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(params.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    shuffle = torch.Generator().manual_seed(learner.task_seed)
    batches = learner.train.order(learner.settings.batch_size, shuffle)
    for t, indices in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, t / len(batches))
        batch = learner.train.collate(indices)
        logits = student(batch.without_loss()).logits.float()
        loss = naive_task_loss(learner, logits, batch.labels)
        for term in terms:
            loss = loss + term(student, logits, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(optimizer, params, t)
    return {name: weight.detach().clone() for name, weight in params.items()}


def teaching(
    learner: Learner, params: P.Params, rows: list[int], lam: float, temperature: float = 2.0
) -> Term:
    """λ KD from a copy of the model with these weights, in eval mode."""
    teacher = copy.deepcopy(learner.model).eval()
    with torch.no_grad():
        for name, weight in teacher.named_parameters():
            weight.copy_(params.get(name, weight))

    def term(student: nn.Module, logits: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            answers = teacher(batch.without_loss()).logits.float()
        return lam * naive_kd(logits[:, rows], answers[:, rows], temperature)

    return term


@pytest.mark.parametrize(
    ("stream", "outputs", "temperature", "rows"),
    [
        ("classes", "past", 2.0, [0, 1]),
        ("classes", "past", 5.0, [0, 1]),
        ("classes", "all", 2.0, [0, 1, 2, 3]),
        ("domains", "past", 2.0, [0, 1]),
    ],
)
def test_a_training_by_hand(tiny_bert_dry, stream, outputs, temperature, rows):
    tasks, lam = STREAMS[stream]().tasks, 30.0
    method = LwF(lr=LR, outputs=outputs, temperature=temperature)
    learner = dry_learner(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start = P.snapshot(learner.model)
    expected = naive_epoch(learner, teaching(learner, start, rows, lam, temperature))
    trial = learner.trial(tasks[1], {"lr": LR, "lam": lam})
    assert method.teachers["distillation"].rows == rows
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 5e-3 * LR
    assert distance(naive_epoch(learner), expected) > 0.1 * LR, "the teacher must show"
    others = {"T": teaching(learner, start, rows, lam, temperature + 1)}
    if stream == "classes":
        wrong = {"past": [0, 1, 2, 3], "all": [0, 1]}[outputs]
        others["rows"] = teaching(learner, start, wrong, lam, temperature)
    for what, other in others.items():
        assert distance(naive_epoch(learner, other), expected) > 0.05 * LR, f"{what} must show"


def test_on_shared_labels_past_outputs_are_all_outputs(tiny_bert, domains):
    ends = []
    for outputs in ("past", "all"):
        learner = second_task(tiny_bert, LwF(outputs=outputs), domains)
        ends.append(learner.trial(domains.tasks[1], {"lr": 1e-2, "lam": 5.0}).params)
    assert_same_bits(*ends)


@pytest.mark.parametrize("outputs", ["past", "all"])
def test_the_rows_of_a_preallocated_head_are_found_by_label(tiny_bert, classes, outputs):
    method = LwF(lam=1.0, outputs=outputs)
    learner = second_task(tiny_bert, method, classes, small(head="preallocated"))
    method.before_task(learner, classes.tasks[1])
    labels = learner.model.head.labels
    assert len(labels) == 6
    rows = method.teachers["distillation"].rows
    expected = classes.tasks[0].labels if outputs == "past" else classes.labels
    assert sorted(labels[i] for i in rows) == sorted(expected)
