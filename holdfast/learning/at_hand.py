"""The task at hand: everything that is valid while a learner learns one task."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator

from holdfast.data.batches import Examples
from holdfast.data.objective import objective
from holdfast.data.tasks import Scenario, Task
from holdfast.events import Progress
from holdfast.fields import to_json
from holdfast.heads import Taught
from holdfast.learning.fit import FitResult, fit
from holdfast.learning.lesson import LOOK_AHEAD, Lesson, describe, search_passes
from holdfast.learning.passes import Ledger, Passes, added
from holdfast.learning.sections import Origin
from holdfast.learning.snapshot import Snapshot
from holdfast.learning.trials import StoredTrial, Workspace, place_of, using
from holdfast.learning.vectors import SplitName, TaskVectors
from holdfast.maths import params as P
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import Params
from holdfast.methods.base import Method, Training
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Network
from holdfast.settings import Settings
from holdfast.storage.tensors import hash_of, read_meta, write_tensors

FIRST_TASKS = 2  # tasks whose trials are shared: later ones start from weights that few runs have in common


class TaskOwner(Protocol):
    """What the task at hand needs of its learner."""

    model: Network
    method: Method
    scenario: Scenario
    settings: Settings
    seed: int
    fixed: frozenset[str]
    shared: Path | None
    progress: Progress
    accelerator: Accelerator
    origin: Origin | None
    tasks_seen: int
    trial_files: Workspace
    at_hand: AtHand | None

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Return everything that is saved."""

    def load_state(self, tensors: Mapping[str, Params], meta: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class AtHand:
    """A task while it is learnt: its trials, and the `LearnerView` that its method gets."""

    def __init__(self, learner: TaskOwner, task: Task) -> None:
        head = learner.model.head
        self.learner, self.model, self.method = learner, learner.model, learner.method
        self.task = task
        self.past_rows = [head.labels.index(label) for label in head.seen]
        self.new = [label for label in task.labels if label not in head.seen]
        """Labels that no earlier task has taught."""
        self.trials: dict[str, StoredTrial] = {}
        self.ledger = Ledger()
        self.vectors = TaskVectors(
            task, self.model, self.ledger, batches=self.batches, on_batch=learner.progress.looked
        )
        self._key = _key_of(task)
        self._examples: dict[tuple[str, ...], Examples] = {}
        self._aim: float | None = None
        """Validation accuracy that further training runs must reach; None if any is wanted."""
        self._start: Snapshot
        self._started: str
        """Hash of the start and of the frozen weights; empty until it is needed."""

    def is_for(self, task: Task) -> bool:
        """Return whether a task is this one."""
        return self._key == _key_of(task)

    def begin(self) -> None:
        """Make all training runs start from here; trials that were finished before stay."""
        self.model.remember([*self.task.train.texts, *self.task.valid.texts])
        self.vectors.move(False)
        self.start_here()

    # ---- learning the task ------------------------------------------------------------------------------

    def search(self) -> Decision:
        """Run the method's plan: train every choice that it yields, and return its decision."""
        plan, answer = self.method.plan(self, self.task), None
        self._aim = None
        while True:
            try:
                choice = plan.send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            answer = self.trial(self.task, choice)

    def adopt(self, trial: StoredTrial) -> Method:
        """Adopt the weights, state and hyper-parameters of a trial; return the method as it was trained."""
        Snapshot.joined(trial.read(), trial.state).restore(self.model, self.method)
        trained = self.method.choosing(trial.choice)
        self.method.set(**{n: value for n, value in trial.choice.items() if n not in self.fixed})
        return trained

    def consolidate(self, trained: Method) -> Passes:
        """Consolidate with the method as it was trained; return the passes that this takes."""
        with self.ledger.counting() as passes:
            trained.consolidate(self, self.task)
        self.method.load_state_dict(trained.state_dict())
        self.vectors.move(trained.moves)
        return passes

    def score_on(
        self,
        known: Sequence[str],
        vectors: Callable[[SplitName], Taught],
        among: Sequence[str] | None = None,
    ) -> float | None:
        """Return the validation score on known labels; None in a study or if no sentence has one."""
        places = [i for i, label in enumerate(self.task.valid.labels) if label in known]
        if self.learner.origin is None or not places:
            return None
        head, valid = self.model.head, vectors("valid")
        some = Taught(valid.features[places], [valid.labels[i] for i in places])
        return head.score(some, None if among is None else [head.labels.index(label) for label in among])

    def lesson(
        self,
        decision: Decision,
        trial: StoredTrial,
        consolidation: Passes,
        known: tuple[float | None, float | None],
    ) -> Lesson:
        """Return the result; `known` are the scores on earlier labels, before and after the task."""
        trials = list(self.trials.values())
        chosen = added(trial.passes, *trial.borrowed.values(), consolidation)
        rest = search_passes(trial, trials, self.ledger.borrowed)
        return Lesson(self.task.name, decision, trial, trials, chosen, rest, known, len(self.task.valid))

    # ---- one training run -------------------------------------------------------------------------------

    def trial(self, task: Task, choice: Choice) -> StoredTrial:
        """Return the trial with these hyper-parameters: a stored one, or a new one from the task's start."""
        key = json.dumps(to_json(choice), sort_keys=True)
        if key not in self.trials:
            learner, method = self.learner, self.method.choosing(choice)
            path = learner.trial_files.agreed(self._place(method))
            learner.progress.trial(len(self.trials) + 1, describe(choice, moves=method.moves))
            found = learner.trial_files.has(path)
            if not found:
                try:
                    self._train(task, method, path)
                finally:
                    self._start.restore(self.model, self.method)
            meta = read_meta(path)
            meta["score"] = math.nan if meta["score"] is None else meta["score"]
            trial = StoredTrial(path, learner.accelerator.device, choice, found=found, **meta)
            self.trials[key] = trial
            if learner.origin is None and method.moves:
                told = method.evidence(self, task, trial.params)
                # Where a tensor lies in memory decides the last digits of a sum.
                trial.evidence = {name: float(f"{value:.6g}") for name, value in told.items()}
            learner.progress.scored(trial.score, found)
        return self.trials[key]

    def _train(self, task: Task, method: Method, path: Path) -> None:
        """Train once with a method and write the trial."""
        began, head = time.perf_counter(), self.model.head
        with self.ledger.borrowing() as borrowed, self.ledger.counting() as passes:
            self._start.restore(self.model, self.method)
            result = self._fit(task, method, method.prepare(self, task)) if method.moves else FitResult()
            self.count("train", forward=result.batches, backward=result.batches)
            self.vectors.move(method.moves)
            notes = head.absorb(self.vectors)
            score = head.score(self.vectors.after("valid"))
            end = Snapshot.of(self.model, method)
            tensors, numbers = replace(end, state={**end.state, **result.carried}).parts()
            meta = {
                "score": score,
                "fit": {
                    "epochs": result.epochs,
                    "best_epoch": result.best_epoch,
                    "valid_loss": result.valid_loss,
                    "diverged": result.diverged,
                    **({"rejected": True} if result.rejected else {}),
                    **notes,
                },
                "state": numbers,
                "passes": passes,
                "borrowed": borrowed,
                "seconds": time.perf_counter() - began,
            }
        accelerator = self.learner.accelerator
        if accelerator.is_main_process:
            if result.squares:
                tensors["squares"] = result.squares
            write_tensors(path, tensors, to_json(meta), private=True)
        accelerator.wait_for_everyone()

    def _fit(self, task: Task, method: Method, training: Training) -> FitResult:
        aim = self._aim if self.model.head.trained else None  # a temporary head's accuracy says little
        progress, settings = self.learner.progress, self.settings
        with self.model.probed(task.labels):
            try:
                return fit(
                    self.model,
                    training,
                    self.train,
                    self.valid,
                    settings,
                    seed=self.task_seed,
                    accelerator=self.learner.accelerator,
                    aim=aim,
                    squares=settings.plan == "stable" and self._aim is None,
                    deployed=lambda epoch: method.deployed(self, training, epoch),
                    on_epoch=lambda epoch, losses: progress.epoch(epoch, settings.epochs, losses),
                )
            finally:
                self.model.eval()  # after an interruption too: predictions use no dropout

    def _place(self, method: Method) -> Path:
        """Return the file of a trial, named by a hash of everything that determines it.

        It lies in the shared folder if other runs may make the same trial, otherwise in the run's own.
        """
        learner, head, start = self.learner, self.model.head, self._start
        if not self._started:
            frozen = {n: t for n, t in self.model.state_dict().items() if n not in start.weights}
            self._started = hash_of(frozen, start.weights, start.state, start.memory)
        machine = learner.accelerator
        decides = [
            self._started,
            [head.labels, head.seen, self.past_rows],
            to_json(dataclasses.asdict(self.settings)),
            [self._key, self.tasks_seen, self.task_seed, self.scenario],
            [machine.num_processes, machine.device.type, machine.mixed_precision],
            *([] if self._aim is None else [self._aim]),
        ]
        if learner.shared is not None and self.tasks_seen < FIRST_TASKS:
            shared_as = method.shared_as()
            if shared_as is not None:
                return place_of(learner.shared, shared_as, *decides, self._reading())
        return place_of(learner.trial_files.directory, type(method).__name__, method.hparams(), *decides)

    def _reading(self) -> list[Any]:
        """Return the encoder's configuration and the tokens: runs that share trials may differ in either."""
        config = {k: v for k, v in self.model.encoder.config.to_dict().items() if k != "_name_or_path"}
        tokens = [self._encoded(part).tokens for part in ("train", "valid")]
        return [json.dumps(config, sort_keys=True, default=str), tokens]

    # ---- what methods see -------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Settings of every training run."""
        return self.learner.settings

    @property
    def scenario(self) -> Scenario:
        """Whether tasks bring labels of their own."""
        return self.learner.scenario

    @property
    def fixed(self) -> frozenset[str]:
        """Hyper-parameters that the user has set; the search does not change them."""
        return self.learner.fixed

    @property
    def tasks_seen(self) -> int:
        """Number of tasks that were learnt before this one."""
        return self.learner.tasks_seen

    @property
    def start(self) -> Params:
        """θ_{k-1}: the weights that every training run of the task starts from, with rows for new labels."""
        return self._start.weights

    def start_here(self) -> None:
        """Make every further training run of the task start from the current model and method."""
        self._start = self.vectors.start = Snapshot.of(self.model, self.method)
        self._started = ""

    @property
    def train(self) -> Examples:
        """Training sentences of the task."""
        return self._encoded("train")

    @property
    def valid(self) -> Examples:
        """Validation sentences of the task."""
        return self._encoded("valid")

    @property
    def batches(self) -> int:
        """Number of batches in one pass over the training sentences."""
        return math.ceil(len(self.task.train) / self.settings.batch_size)

    @property
    def task_seed(self) -> int:
        """Seed derived from the learner's seed and the task's name, the same for all trials."""
        return int(_digest(f"{self.learner.seed}/{self.task.name}"), 16) % 2**31

    def rates(self, *, own: bool = False) -> tuple[float, ...]:
        """Return the learning rates to try: those of the optimiser, or the one rate that the user has set.

        `own` is for a method with SGD-type steps of its own, whatever the run's optimiser.
        """
        if "lr" in self.fixed:
            return (self.method.lr,)
        return self.settings.sgd_rates if own or self.settings.optimizer == "sgd" else self.settings.rates

    def predicted(self, weights: Params) -> float | None:
        """Return the validation score with these weights; None if the head is not trained with them."""
        if not self.model.head.trained:
            return None
        valid = self.task.valid
        with P.using(self.model, weights):
            return self.model.head.score(Taught(self.model.embed(valid.texts), valid.labels))

    def aim_at(self, score: float) -> None:
        """Stop further training runs of the task that cannot reach this validation accuracy any more."""
        self._aim = score

    def look_ahead(self, task: Task, lr: float) -> StoredTrial:
        """Return a trial with the task loss only, which shows where the task alone takes the weights."""
        trial = self.trial(task, {"lr": lr} | dict.fromkeys(self.method.strengths, 0.0))
        self.ledger.borrow(LOOK_AHEAD, {"train": trial.passes["train"]})
        return trial

    def using(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        """Run a block with the weights and head memory of a trial; yield the trial's method state."""
        return using(self.model, trial)

    def once(self, what: str, compute: Callable[[], Params], *, lr: float | None = None) -> Params:
        """Compute something that trials share once per task, or once per learning rate if `lr` is given."""
        return self.ledger.once(what, compute, lr=lr)

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Count passes over the data, in batches."""
        self.ledger.count(phase, forward=forward, backward=backward)

    def _encoded(self, part: SplitName) -> Examples:
        head = self.model.head
        key = (part, *head.labels)
        if key not in self._examples:
            loss = objective(
                self.scenario if head.has_past else "domain-incremental",
                self.task,
                part,
                rows=head.labels,
                seen=head.seen,
                class_weights=self.settings.class_weights,
                relaxation=self.settings.relaxation,
            )
            found = self.model.encode(getattr(self.task, part), loss)
            if not head.has_past:  # a head for this task alone: labels of other tasks do not count
                found = replace(found, labels=[IGNORED if row < 0 else row for row in found.labels])
            self._examples[key] = found
        return self._examples[key]


def _key_of(task: Task) -> str:
    """Return a hash of what is learnt of a task."""
    return _digest(f"({task.name!r}, {task.train.spelled()}, {task.valid.spelled()})")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ---- between tasks ------------------------------------------------------------------------------------


def put_down(learner: TaskOwner) -> None:
    """Drop the task at hand with its sentences, their vectors, the trials and the shared work."""
    learner.at_hand = None
    learner.model.unremember()


@contextmanager
def whole_or_not_at_all(learner: TaskOwner) -> Iterator[None]:
    """Restore a learner if a block is interrupted (Ctrl-C in a notebook, a full disk).

    Finished trials stay on disk, and the same lesson, started again, reuses them.
    """
    state, scenario = learner.state(), learner.scenario
    try:
        yield
    except BaseException:
        learner.load_state(*state)
        learner.scenario = scenario
        put_down(learner)
        raise
