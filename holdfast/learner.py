"""Learner: a model, a method and a workspace; learns one task after another."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from holdfast import params as P
from holdfast.data.batches import Examples
from holdfast.data.tasks import Scenario, Split, Task
from holdfast.fit import fit
from holdfast.lesson import Lesson, Trial
from holdfast.losses import objective
from holdfast.method import Method
from holdfast.metrics import macro_f1
from holdfast.models.classifier import Classifier
from holdfast.params import Params
from holdfast.passes import Passes, added, without
from holdfast.progress import Progress
from holdfast.search import Choice, Decision
from holdfast.settings import Settings, to_json
from holdfast.store import read_meta, write_tensors

LOOK_AHEAD = "look-ahead"


@dataclass
class Learner:
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
    progress: Progress = field(default_factory=Progress)
    accelerator: Accelerator = field(default_factory=Accelerator)
    tasks_seen: int = 0
    past_rows: list[int] = field(default_factory=list, init=False)
    """Rows of the head whose labels were taught before the current task."""

    # What lives no longer than the task at hand.
    _task_key: str = field(init=False, repr=False)
    _trials: dict[str, Trial] = field(init=False, repr=False)
    _examples: dict[str, Examples] = field(init=False, repr=False)
    _shared: dict[tuple[str, float | None], tuple[Params, dict[str, Passes]]] = field(init=False, repr=False)
    _borrowed: dict[str, Passes] = field(init=False, repr=False)
    _passes: list[Passes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.model.to(self.accelerator.device)
        self._begin_anew()

    # ---- learning ---------------------------------------------------------------------------------

    def learn(self, task: Task) -> Lesson:
        """Search, adopt the chosen training, consolidate."""
        self.begin(task)
        decision = self._drive(task)
        trial = self.trial(task, decision.trial.choice)
        self._adopt(trial)
        with self._counting() as consolidation:
            self.method.after_task(self, task)
        chosen = added(trial.passes, *trial.borrowed.values(), consolidation)
        lesson = Lesson(task.name, decision, list(self._trials.values()), chosen, self._search_passes(trial))
        self.tasks_seen += 1
        self._begin_anew()
        self.accelerator.wait_for_everyone()  # others may still be reading the trial
        return lesson

    def begin(self, task: Task) -> None:
        """Check a task and make room for its labels, once, before any trial."""
        self.method.admit(task)
        head = self.model.head
        rows = {f"head.{name}": value for name, value in head.add(task.labels).items()}
        key = _digest(repr((task.name, task.train, task.valid)))
        if key != self._task_key:  # a task that is begun again has taught its labels already
            self.past_rows = [head.labels.index(label) for label in head.seen]
        head.teach(task.labels)
        if rows:
            self.method.grow(rows)
        self.model.to(self.accelerator.device)
        self._task = task
        self._task_key = key
        self._start = (P.snapshot(self.model), self.method.state_dict())
        self.progress.task(self.tasks_seen + 1, task.name)

    def look_ahead(self, task: Task) -> Trial:
        """Where the task alone would take the weights: a throw-away training with the task loss only."""
        off: Choice = {"lr": self.method.lr} | dict.fromkeys(self.method.strengths, 0.0)
        trial = self.trial(task, off)
        self._borrow(LOOK_AHEAD, trial.passes)
        return trial

    @contextmanager
    def using(self, trial: Trial) -> Iterator[None]:
        """Run the block with the weights and the method's state that a training ended with."""
        tensors, state = trial.read(), self.method.state_dict()
        with P.using(self.model, tensors.pop("weights")):
            self.method.load_state_dict(tensors | trial.state)
            try:
                yield
            finally:
                self.method.load_state_dict(state)

    def once(self, what: str, compute: Callable[[], Params], *, each_rate: bool = True) -> Params:
        """Work that trials (of one learning rate) share: done once, forgotten when the task ends."""
        key = (what, self.method.lr if each_rate else None)
        if key not in self._shared:
            with self._borrowing() as borrowed, self._counting() as passes:
                value = compute()
                self._borrow(what, passes)
            self._shared[key] = (value, borrowed)
        value, borrowed = self._shared[key]
        self._borrowed |= borrowed
        return value

    def trial(self, task: Task, choice: Choice) -> Trial:
        """Train with these hyper-parameters from the task's start, and put everything back."""
        key = json.dumps(to_json(choice), sort_keys=True)
        if key not in self._trials:
            path = self._directory / f"{self.tasks_seen + 1:03d}-{_digest(self._task_key + key)}.trial"
            self.progress.trial(len(self._trials) + 1, describe(choice))
            reused = path.exists()
            if not reused:
                try:
                    self._train(task, choice, path)
                finally:
                    self._put_back()  # after Ctrl-C in a notebook too: the task can be learnt again
            meta = read_meta(path)
            self._trials[key] = Trial(path, self.accelerator.device, choice, **meta)
            self.progress.scored(self._trials[key].score, reused)
        return self._trials[key]

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
        with self.method.trying(choice), self._borrowing() as borrowed, self._counting() as passes:
            self._put_back()
            self.method.before_task(self, task)
            result = fit(
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
            self.count("train", forward=result.batches, backward=result.batches)
            tensors, numbers = split_state(self.method.state_dict())
            meta = {
                "score": self.score(task.valid),
                "fit": {
                    "epochs": result.epochs,
                    "best_epoch": result.best_epoch,
                    "valid_loss": result.valid_loss,
                    "diverged": result.diverged,
                },
                "state": numbers,
                "passes": passes,
                "borrowed": borrowed,
            }
        if self.accelerator.is_main_process:
            write_tensors(path, {"weights": P.snapshot(self.model), **tensors}, to_json(meta))
        self.accelerator.wait_for_everyone()

    def _adopt(self, trial: Trial) -> None:
        """Make a trial the model: its weights, the state it ended with, its hyper-parameters."""
        tensors = trial.read()
        P.restore(self.model, tensors.pop("weights"))
        self.method.load_state_dict(tensors | trial.state)
        self.method.set(**{n: value for n, value in trial.choice.items() if n not in self.fixed})

    def _put_back(self) -> None:
        params, state = self._start
        P.restore(self.model, params)
        self.method.load_state_dict(state)

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
        return math.ceil(len(self.train) / self.settings.batch_size)

    @property
    def task_seed(self) -> int:
        """Randomness is keyed by (seed, task): every phase and trial sees the same batches and dropout."""
        return int(_digest(f"{self.seed}/{self._task.name}"), 16) % 2**31

    def _encoded(self, part: Any) -> Examples:
        if part not in self._examples:
            head = self.model.head
            loss = objective(
                self.scenario,
                self._task,
                part,
                rows=head.labels,
                seen=head.seen,
                class_weights=self.settings.class_weights,
            )
            self._examples[part] = self.model.encode(getattr(self._task, part), loss)
        return self._examples[part]

    # ---- predicting -------------------------------------------------------------------------------------

    @property
    def classes_(self) -> list[str]:
        """The labels a prediction may have."""
        return [self.model.head.labels[row] for row in self.model.head.visible_rows()]

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The label of each text: argmax of raw logits. Nobody says which task it is from."""
        classes = self.classes_
        rows = self.model.head.visible_rows()
        return [classes[i] for i in self.model.logits(texts)[:, rows].argmax(1).tolist()]

    def score(self, split: Split) -> float:
        """Macro-F1 on a split."""
        return macro_f1(split.labels, self.predict(split.texts))

    # ---- state ------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Everything that survives: weights, the method's state, labels, hyper-parameters."""
        tensors, numbers = split_state(self.method.state_dict())
        meta = {
            "labels": list(self.model.head.labels),
            "seen": list(self.model.head.seen),
            "tasks_seen": self.tasks_seen,
            "hparams": self.method.hparams(),
            "numbers": numbers,
        }
        return {"weights": P.snapshot(self.model), **tensors}, meta

    def load_state(self, tensors: dict[str, Params], meta: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        self.model.head.become(meta["labels"], meta["seen"])
        self.model.to(self.accelerator.device)
        device = self.accelerator.device
        moved = {group: {n: t.to(device) for n, t in params.items()} for group, params in tensors.items()}
        P.restore(self.model, moved.pop("weights"))
        self.method.set(**meta["hparams"])
        self.method.load_state_dict(moved | meta["numbers"])
        self.tasks_seen = meta["tasks_seen"]

    # ---- housekeeping -----------------------------------------------------------------------------------

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Note passes over the data, in batches."""
        if not forward and not backward:
            return
        mine = self._passes[-1].setdefault(phase, {"forward": 0, "backward": 0})
        mine["forward"] += forward
        mine["backward"] += backward

    @contextmanager
    def _counting(self) -> Iterator[Passes]:
        self._passes.append({})
        try:
            yield self._passes[-1]
        finally:
            self._passes.pop()

    @contextmanager
    def _borrowing(self) -> Iterator[dict[str, Passes]]:
        outer = self._borrowed
        self._borrowed = {}
        try:
            yield self._borrowed
        finally:
            self._borrowed = outer

    def _borrow(self, what: str, passes: Passes) -> None:
        self._borrowed[what] = {what: added(*({"": count} for count in passes.values())).get("", {})}

    def _search_passes(self, chosen: Trial) -> Passes:
        """What the chosen training did not need. A look-ahead is one of the trials, under another name."""
        trials = [trial.passes for trial in self._trials.values() if trial is not chosen]
        pieces = {what: p for trial in self._trials.values() for what, p in trial.borrowed.items()}
        pieces |= self._borrowed
        shared = [p for what, p in pieces.items() if what != LOOK_AHEAD and what not in chosen.borrowed]
        ahead = chosen.borrowed.get(LOOK_AHEAD, {}).get(LOOK_AHEAD)
        return without(added(*trials, *shared), {"train": ahead} if ahead else {})

    def drop_trials(self) -> None:
        """Delete the trial files of finished tasks."""
        for path in self._directory.glob("*.trial"):
            path.unlink(missing_ok=True)

    def _begin_anew(self) -> None:
        """Forget the task: its sentences, its trials, what they shared."""
        self._task_key = ""
        self._trials = {}
        self._examples = {}
        self._shared = {}
        self._borrowed = {}
        self._passes = [{}]

    @cached_property
    def _directory(self) -> Path:
        if self.workspace is not None:
            self.workspace.mkdir(parents=True, exist_ok=True)
            return self.workspace
        name = [""]
        if self.accelerator.is_main_process:
            self._temporary = tempfile.TemporaryDirectory(prefix="holdfast-")
            name = [self._temporary.name]
        return Path(broadcast_object_list(name)[0])  # one directory for all processes


def split_state(state: dict[str, Any]) -> tuple[dict[str, Params], dict[str, Any]]:
    """A method's state as groups of tensors and as numbers."""
    tensors = {name: value for name, value in state.items() if isinstance(value, dict)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def describe(choice: Choice) -> str:
    """Hyper-parameters as a person reads them."""
    return "  ".join(
        f"{name} {value:.3g}" for name, value in choice.items() if isinstance(value, float | int)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
