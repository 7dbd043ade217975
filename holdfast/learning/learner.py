"""Learner: a model, a method and a workspace; learns one task after another."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator

from holdfast.data.batches import Examples
from holdfast.data.tasks import Scenario, Task, task_of
from holdfast.events import Progress
from holdfast.learning.features import Features
from holdfast.learning.fit import FitResult, fit
from holdfast.learning.lesson import LOOK_AHEAD, Lesson, Trial, describe, search_passes, split_state
from holdfast.learning.passes import Ledger, Passes, added
from holdfast.learning.persistent import Persistent
from holdfast.learning.pool import FIRST_TASKS, Pool, alike, fingerprint
from holdfast.learning.workspace import Workspace
from holdfast.maths import params as P
from holdfast.maths.losses import IGNORED, objective
from holdfast.maths.params import Params
from holdfast.methods.base import Method
from holdfast.methods.search import Choice, Decision
from holdfast.models.classifier import Classifier
from holdfast.settings import Settings, to_json
from holdfast.storage.generations import read_meta, write_tensors

Part = Literal["train", "valid"]


@dataclass
class Learner(Persistent):
    """Teaches a model one task after another, keeping the method's state and nothing else."""

    model: Classifier
    method: Method
    scenario: Scenario = "class-incremental"
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    fixed: frozenset[str] = frozenset()
    """Hyper-parameters the user has set: the search leaves them alone."""
    workspace: Path | None = None
    """Where trials wait, so that a killed run resumes; by default a directory that goes with the process."""
    pool: Pool | None = None
    """Where runs of one study share trainings of their first tasks."""
    progress: Progress = field(default_factory=Progress)
    accelerator: Accelerator = field(default_factory=Accelerator)
    origin: Any = None
    """What it was made of, if it is to be saved: see `state.py`."""
    history: list[dict[str, Any]] = field(default_factory=list, init=False)
    """What was learnt, lesson by lesson; never a text of it."""
    tasks_seen: int = 0
    past_rows: list[int] = field(default_factory=list, init=False)
    """Rows of the head whose labels were taught before the current task."""

    # What lives no longer than the task at hand.
    _task_key: str = field(init=False, repr=False)
    _trials: dict[str, Trial] = field(init=False, repr=False)
    _examples: dict[tuple[str, ...], Examples] = field(init=False, repr=False)
    _shared: dict[tuple[str, float | None], tuple[Params, dict[str, Passes]]] = field(init=False, repr=False)
    _ledger: Ledger = field(init=False, repr=False)
    _started: str = field(init=False, repr=False)
    """A hash of where the task's trainings start, once somebody has asked for it."""

    def __post_init__(self) -> None:
        self.model.to(self.accelerator.device)
        self._workspace = Workspace(self.workspace, self.accelerator)
        self._closed = not self.model.head.trained
        self.features = Features(self)
        self._begin_anew()

    # ---- learning ---------------------------------------------------------------------------------

    def learn(
        self, task: Task | Sequence[str], labels: Sequence[str] | None = None, name: str | None = None
    ) -> Lesson:
        """Search, adopt the chosen training, consolidate.

        Texts with their labels are a task too: some are held out for the choices to be made, and a
        closed-form head takes those in as well once they have served.
        """
        own_split = isinstance(task, Task)
        if not isinstance(task, Task):
            given = () if labels is None else labels
            task = task_of(task, given, name or f"lesson {self.tasks_seen + 1}")
        known = self.classes_
        with self._whole_or_not_at_all():
            self.begin(task)
            before = self._score_of(known)
            decision = self._drive(task)
            trial = self.trial(task, decision.trial.choice)
            self._adopt(trial)
            # As it was trained: a field that the user has fixed may say otherwise.
            with self.method.trying(trial.choice):
                moved = self.method.moves
                with self._ledger.counting() as consolidation:
                    self.method.after_task(self, task)
            after = self._score_of(known, moved=moved)
            if self._closed and not own_split:
                self.features.take_in_valid(task, moved=moved)
            chosen = added(trial.passes, *trial.borrowed.values(), consolidation)
            trials = list(self._trials.values())
            rest = search_passes(trial, trials, self._ledger.borrowed)
            lesson = Lesson(task.name, decision, trials, chosen, rest, (before, after))
            self.history.append(lesson.entry(task, self._new))
            self.tasks_seen += 1
            self._begin_anew()
        self.accelerator.wait_for_everyone()  # others may still be reading the trial
        self._workspace.retire([trial.path for trial in trials])
        return lesson

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """A lesson that is broken off (Ctrl-C in a notebook, a full disk) leaves the learner as it was.

        Trainings that were finished wait on disk: the same lesson, asked for again, goes on from them.
        """
        state, scenario = self.state(), self.scenario
        try:
            yield
        except BaseException:
            self.load_state(*state)
            self.scenario = scenario
            self._begin_anew()
            raise

    def begin(self, task: Task) -> None:
        """Check a task and make room for its labels, once, before any trial."""
        self.method.admit(task)
        head = self.model.head
        rows = {f"head.{name}": value for name, value in head.add(task.labels).items()}
        key = _digest(repr((task.name, task.train, task.valid)))
        if key != self._task_key:  # a task that is begun again has taught its labels already
            self._begin_anew()  # what an interrupted task has left is not this one's
            self.past_rows = [head.labels.index(label) for label in head.seen]
            self._new = [label for label in task.labels if label not in head.seen]
            if self.origin is not None:  # nobody has said which scenario it is: the labels do
                self.scenario = "class-incremental" if self._new else "domain-incremental"
        head.teach(task.labels)
        if rows:
            self.method.grow(rows)
        self.model.to(self.accelerator.device)
        self._task = task
        self._task_key = key
        self.start_here()
        self.progress.task(self.tasks_seen + 1, task.name)

    def start_here(self) -> None:
        """Let every training of the task start from what the model and the method are now."""
        self._start = (P.snapshot(self.model), self.method.state_dict(), self.model.memory())
        self._started = ""

    def look_ahead(self, task: Task) -> Trial:
        """Where the task alone would take the weights: a throw-away training with the task loss only."""
        off: Choice = {"lr": self.method.lr} | dict.fromkeys(self.method.strengths, 0.0)
        trial = self.trial(task, off)
        self._ledger.borrow(LOOK_AHEAD, {"train": trial.passes["train"]})
        return trial

    @contextmanager
    def using(self, trial: Trial) -> Iterator[None]:
        """Run the block with what a training ended with: weights, the head's memory, the method's state."""
        own = (P.snapshot(self.model), self.method.state_dict(), self.model.memory())
        tensors = trial.read()
        try:
            self._become(tensors.pop("weights"), tensors | trial.state, tensors.pop("memory", {}))
            yield
        finally:
            self._become(*own)

    def once(self, what: str, compute: Callable[[], Params], *, each_rate: bool = True) -> Params:
        """Work that trials (of one learning rate) share: done once, forgotten when the task ends."""
        key = (what, self.method.lr if each_rate else None)
        if key not in self._shared:
            with self._ledger.borrowing() as borrowed, self._ledger.counting() as passes:
                value = compute()
                self._ledger.borrow(what, passes)
            self._shared[key] = (value, borrowed)
        value, borrowed = self._shared[key]
        self._ledger.borrowed |= borrowed
        return value

    def trial(self, task: Task, choice: Choice) -> Trial:
        """Train with these hyper-parameters from the task's start, and put everything back."""
        key = json.dumps(to_json(choice), sort_keys=True)
        if key not in self._trials:
            with self.method.trying(choice):
                path = self._workspace.agreed(self._place())
                self.progress.trial(len(self._trials) + 1, describe(choice, moves=self.method.moves))
            reused = self._workspace.has(path)
            if not reused:
                try:
                    self._train(task, choice, path)
                finally:
                    self._put_back()
            meta = read_meta(path)
            meta["score"] = math.nan if meta["score"] is None else meta["score"]
            self._trials[key] = Trial(path, self.accelerator.device, choice, found=reused, **meta)
            self.progress.scored(self._trials[key].score, reused)
        return self._trials[key]

    def _place(self) -> Path:
        """The file of the training that the method is set to make, named by everything that decides it.

        It lies in this run's own folder, or in what runs share: no other training is ever found there.
        """
        head, settings = self.model.head, to_json(asdict(self.settings))
        rows = [head.labels, head.seen, self.past_rows]
        if not self._started:
            frozen = {n: t for n, t in self.model.state_dict().items() if n not in self._start[0]}
            self._started = fingerprint(frozen, *self._start)
        machine = self.accelerator
        where = [machine.num_processes, machine.device.type, machine.mixed_precision]
        task = [self._task_key, self.tasks_seen, self.task_seed, self.scenario]
        decides = [self._started, rows, settings, task, where]
        pool = None if self._closed or self.tasks_seen >= FIRST_TASKS else self.pool
        trains_as = alike(self.method) if pool else None
        if pool is not None and trains_as is not None:
            return pool.place(trains_as, *decides, self._reading())
        return self._workspace.pool.place(type(self.method).__name__, self.method.hparams(), *decides)

    def _reading(self) -> list[Any]:
        """How the encoder reads the task, beside its weights: runs on another one may share a pool."""
        config = {k: v for k, v in self.model.encoder.config.to_dict().items() if k != "_name_or_path"}
        tokens = [self._encoded(part).tokens for part in ("train", "valid")]
        return [json.dumps(config, sort_keys=True, default=str), tokens]

    def rates(self) -> tuple[float, ...]:
        """The learning rates to try: the grid, or the one the user fixed."""
        return (self.method.lr,) if "lr" in self.fixed else self.method.rates(self.settings)

    def _drive(self, task: Task) -> Decision:
        plan = self.method.search(self, task)
        answer = None
        while True:
            try:
                choice = plan.send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            answer = self.trial(task, choice)

    def _train(self, task: Task, choice: Choice, path: Path) -> None:
        began = time.perf_counter()
        with (
            self.method.trying(choice),
            self._ledger.borrowing() as borrowed,
            self._ledger.counting() as passes,
        ):
            self._put_back()
            self.method.before_task(self, task)
            result = self._fit(task) if self.method.moves else FitResult()
            self.count("train", forward=result.batches, backward=result.batches)
            # A closed-form head takes the task in before the trial is scored.
            score, notes = self.features.take_in(task) if self._closed else (self.score(task.valid), {})
            tensors, numbers = split_state(self.method.state_dict())
            meta = {
                "score": score,
                "fit": {
                    "epochs": result.epochs,
                    "best_epoch": result.best_epoch,
                    "valid_loss": result.valid_loss,
                    "diverged": result.diverged,
                    **notes,
                },
                "state": numbers,
                "passes": passes,
                "borrowed": borrowed,
                "seconds": time.perf_counter() - began,
            }
        if self.accelerator.is_main_process:
            write_tensors(path, self._tensors() | tensors, to_json(meta))
        self.accelerator.wait_for_everyone()

    def _fit(self, task: Task) -> FitResult:
        """Train; under a closed-form head, by a throw-away linear one over the task's own labels."""
        if self._closed:
            self.features.at(task)  # as they are before the trunk moves
        with self.model.probed(task.labels, self.seed) if self._closed else nullcontext():
            return fit(
                self.model,
                self.method,
                self.train,
                self.valid,
                self.settings,
                seed=self.task_seed,
                accelerator=self.accelerator,
                deployed=lambda: self.method.deployed(self, task),
                on_epoch=lambda epoch, losses: self.progress.epoch(epoch, self.settings.epochs, losses),
            )

    def _adopt(self, trial: Trial) -> None:
        """Make a trial the model: its weights, the state it ended with, its hyper-parameters."""
        tensors = trial.read()
        self._become(tensors.pop("weights"), tensors | trial.state, tensors.pop("memory", {}))
        self.method.set(**{n: value for n, value in trial.choice.items() if n not in self.fixed})

    def _put_back(self) -> None:
        self._become(*self._start)

    # ---- the task at hand, encoded once -----------------------------------------------------------------

    @property
    def start(self) -> Params:
        """The weights every training of the current task starts from: θ_{k-1}, with rows for new labels."""
        return self._start[0]

    @property
    def train(self) -> Examples:
        """The current task's training sentences."""
        return self._encoded("train")

    @property
    def valid(self) -> Examples:
        """The current task's validation sentences."""
        return self._encoded("valid")

    @property
    def batches(self) -> int:
        """How many batches one pass over the training sentences takes."""
        return math.ceil(len(self._task.train) / self.settings.batch_size)

    @property
    def task_seed(self) -> int:
        """Randomness is keyed by (seed, task): every phase and trial sees the same batches and dropout."""
        return int(_digest(f"{self.seed}/{self._task.name}"), 16) % 2**31

    def _encoded(self, part: Part) -> Examples:
        head = self.model.head
        key = (part, *head.labels)
        if key not in self._examples:
            # A throw-away head knows the labels of this task only: there is no past to balance against.
            loss = objective(
                "domain-incremental" if self._closed else self.scenario,
                self._task,
                part,
                rows=head.labels,
                seen=head.seen,
                class_weights=self.settings.class_weights,
            )
            found = self.model.encode(getattr(self._task, part), loss)
            if self._closed and head.trained:  # the throw-away head: labels of other tasks do not count
                found = replace(found, labels=[IGNORED if row < 0 else row for row in found.labels])
            self._examples[key] = found
        return self._examples[key]

    # ---- housekeeping -----------------------------------------------------------------------------------

    def _score_of(self, labels: Sequence[str], *, moved: bool = False) -> float | None:
        """What a lesson does to labels that came before: asked for a learner in daily use only."""
        if not self._closed or self.origin is None:
            return None
        return self.features.score_of(labels, self._task, moved=moved)

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Note passes over the data, in batches."""
        self._ledger.count(phase, forward=forward, backward=backward)

    def start_over(self) -> None:
        """Forget what belongs to a task that was not finished."""
        self._begin_anew()
        if self.workspace is None:  # in a directory that was given others may have theirs
            self.drop_trials()

    def work_in(self, directory: Path) -> None:
        """Let trials wait in this directory from now on."""
        self._workspace = Workspace(directory, self.accelerator)

    def drop_trials(self) -> None:
        """Delete the trial files of finished tasks."""
        self._workspace.clear()

    def _begin_anew(self) -> None:
        """Forget the task: its sentences, its trials, what they shared."""
        self._task_key = ""
        self._trials = {}
        self._examples = {}
        self._shared = {}
        self._ledger = Ledger()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
