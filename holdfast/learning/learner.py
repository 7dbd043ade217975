"""Learner: a model and a method that learn one task after another and answer for texts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from holdfast.data.batches import Examples
from holdfast.data.objective import objective
from holdfast.data.tasks import Scenario, Split, Task, task_of
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.fields import from_json, to_json, unknown
from holdfast.heads import SLDAHead, Taught
from holdfast.learning import directory
from holdfast.learning.directory import EVERYDAY, KEEP, Origin
from holdfast.learning.fit import FitResult, fit
from holdfast.learning.lesson import LOOK_AHEAD, Lesson, describe, search_passes
from holdfast.learning.passes import Ledger, Passes, added
from holdfast.learning.trials import StoredTrial, Workspace, hash_of, place_of
from holdfast.learning.vectors import TaskVectors
from holdfast.maths import params as P
from holdfast.maths.losses import IGNORED
from holdfast.maths.metrics import macro_f1
from holdfast.maths.params import Params
from holdfast.methods import METHODS
from holdfast.methods.base import Method, Training
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Classifier, build_classifier
from holdfast.settings import Settings
from holdfast.storage.files import write_bytes
from holdfast.storage.generations import Store, read_meta, write_tensors

FIRST_TASKS = 2  # whose trainings runs share: later tasks start from weights that few runs have in common


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
    """Directory of trials, so that a killed run resumes; by default one that goes with the process."""
    shared: Path | None = None
    """Directory where runs of one study share trainings of their first tasks."""
    progress: Progress = field(default_factory=Progress)
    accelerator: Accelerator = field(default_factory=Accelerator)
    origin: Origin | None = None
    """What it was made of, if it can be saved."""
    history: list[dict[str, Any]] = field(default_factory=list, init=False)
    """What was learnt, lesson by lesson; never a text of it."""
    tasks_seen: int = 0
    past_rows: list[int] = field(default_factory=list, init=False)
    """Rows of the head whose labels were taught before the current task."""

    vectors: TaskVectors = field(init=False, repr=False)
    """The sentence vectors of the task at hand."""

    # What lives no longer than the task at hand.
    _task_key: str = field(init=False, repr=False)
    _trials: dict[str, StoredTrial] = field(init=False, repr=False)
    _examples: dict[tuple[str, ...], Examples] = field(init=False, repr=False)
    _once: dict[tuple[str, float | None], tuple[Params, dict[str, Passes]]] = field(init=False, repr=False)
    _valid_vectors: Params = field(init=False, repr=False)
    _ledger: Ledger = field(init=False, repr=False)
    _started: str = field(init=False, repr=False)
    """A hash of where the task's trainings start, once somebody has asked for it."""

    def __post_init__(self) -> None:
        self.model.to(self.accelerator.device)
        self._workspace = Workspace(self.workspace, self.accelerator)
        self._forget_task()

    # ---- made by name, saved, loaded --------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        model: str = "minilm",
        method: str = "auto",
        *,
        settings: Settings = EVERYDAY,
        seed: int = 0,
        generations: int = KEEP,
        **hyper_parameters: Any,
    ) -> Self:
        """Make a learner by the names of its encoder and method; `generations` of it are kept on disk."""
        if method not in METHODS:
            raise HoldfastError(unknown(method, list(METHODS), "method"))
        if method == "mtl":
            raise HoldfastError(
                "mtl learns all tasks at once and needs all their data; choose another method"
            )
        known = list(METHODS[method].hyper_parameters())
        if strange := sorted(set(hyper_parameters) - set(known)):
            raise HoldfastError(unknown(strange[0], known, "hyper-parameter"))
        made, name = METHODS[method](**hyper_parameters), directory.named(model)
        classifier = build_classifier(name, settings, seed=seed, method=made)
        fingerprint = directory.encoder_fingerprint(classifier)
        chosen: Any = to_json(dataclasses.asdict(settings))
        origin = Origin(method, name, fingerprint, chosen, seed, generations)
        fixed = frozenset(hyper_parameters)
        return cls(classifier, made, settings=settings, seed=seed, fixed=fixed, origin=origin)

    @classmethod
    def load(cls, path: str | Path, generation: int | None = None) -> Self:
        """Load the learner of a directory, as it was saved last or at a generation."""
        path = Path(path)
        tensors, meta = Store(path).load(generation)
        origin = directory.origin_of(meta, path)
        if origin.method not in METHODS:
            raise HoldfastError(
                f"{path} was made with the method {origin.method!r}, which this Holdfast has not"
            )
        values = from_json(METHODS[origin.method], meta["learner"]["hparams"])
        fixed = {name: values[name] for name in meta["fixed"]}
        settings = replace(Settings(), **from_json(Settings, origin.settings))
        learner = cls.create(origin.model, origin.method, settings=settings, seed=origin.seed, **fixed)
        found = directory.encoder_fingerprint(learner.model)
        if found != origin.fingerprint:
            raise HoldfastError(
                f"{path} was made with another model than the one now called {origin.model!r} "
                f"(fingerprint {origin.fingerprint}, here {found}); put that model back"
            )
        learner.load_state(tensors, meta["learner"])
        learner.origin = origin
        return learner

    @property
    def made_of(self) -> Origin:
        """What it was made of; an error if it cannot be saved."""
        if self.origin is None:
            raise HoldfastError("this learner does not know what it was made of; make it with Learner.create")
        return self.origin

    def save(self, path: str | Path) -> int:
        """Commit what was learnt as the directory's next generation, whole or not at all; its number."""
        with directory.working_in(Path(path)):
            return self.commit(Path(path))

    def commit(self, path: Path, *, keep: int | None = None) -> int:
        """Save for a caller that holds the lock already, who may keep fewer generations this once."""
        origin = self.made_of
        tensors, state = self.state()
        meta = {
            "holdfast": directory.version_of("holdfast"),
            "origin": dataclasses.asdict(origin),
            "fixed": sorted(self.fixed),
            "learner": state,
        }
        number = Store(path, keep or origin.keep).commit(tensors, to_json(meta))
        # The lesson is learnt: a card that cannot be written is no reason to repeat it.
        with suppress(HoldfastError):
            card = directory.card(origin, self.model.head, self.history, self.classes_)
            write_bytes(path / "README.md", card.encode())
        return number

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Return everything that survives: weights, the method's state, labels, hyper-parameters."""
        tensors, numbers = _split(self.method.state_dict())
        meta = {
            "labels": list(self.model.head.labels),
            "seen": list(self.model.head.seen),
            "tasks_seen": self.tasks_seen,
            "history": list(self.history),
            "hparams": self.method.hparams(),
            "numbers": numbers,
        }
        return self._tensors() | tensors, meta

    def load_state(self, tensors: Mapping[str, Params], meta: Mapping[str, Any]) -> None:
        """Put back what `state` gave."""
        device = self.accelerator.device
        self.model.head.become(meta["labels"], meta["seen"])
        self.model.to(device)
        moved = {group: {n: t.to(device) for n, t in params.items()} for group, params in tensors.items()}
        self.method.set(**meta["hparams"])
        self._become(moved.pop("weights"), moved | meta["numbers"], moved.pop("memory", {}))
        self.tasks_seen, self.history = meta["tasks_seen"], list(meta.get("history", ()))

    # ---- answers ----------------------------------------------------------------------------------------

    @property
    def classes_(self) -> list[str]:
        """The labels a prediction may have."""
        return [self.model.head.labels[row] for row in self.model.head.visible_rows()]

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the label of each text: argmax of raw logits."""
        classes, rows = self.classes_, self._rows()
        return [classes[i] for i in self.model.logits(texts)[:, rows].argmax(1).tolist()]

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """Return the probability of each of `classes_`, a row per text."""
        found: np.ndarray = self.probabilities(self.model.embed(texts)).numpy()
        return found

    def is_unknown(self, texts: Sequence[str], reject: float = 0.95) -> list[bool]:
        """Return whether each text lies further out than that share of the validation sentences did."""
        return self.far_out(self.model.embed(texts), reject)

    def far_out(self, features: Tensor, reject: float) -> list[bool]:
        """Return the same for sentence vectors."""
        self._rows()
        head = self.model.head
        found: list[bool] = (head.distances(features) > head.threshold(reject)).tolist()
        return found

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Return the probability of each of `classes_` for sentence vectors."""
        head = self.model.head
        device = next(self.model.encoder.parameters()).device
        logits = head(features.to(device))[:, self._rows()].double().cpu()
        found: Tensor = (logits / head.temperature).softmax(1)
        return found

    def score(self, texts: Split | Sequence[str], labels: Sequence[str] | None = None) -> float:
        """Return the macro-F1 on a split, or on texts and their labels."""
        if not isinstance(texts, Split):
            texts = Split(tuple(texts), tuple(() if labels is None else labels))
        return macro_f1(texts.labels, self.predict(texts.texts))

    def _rows(self) -> list[int]:
        """Return the head's rows of `classes_`."""
        rows = self.model.head.visible_rows()
        if not rows:
            raise HoldfastError("this learner has no labels yet; teach it some")
        return rows

    # ---- labels taken out, learners merged --------------------------------------------------------------

    def forget(self, label: str) -> str:
        """Drop a label; return what still carries traces of it, or an empty string."""
        if label not in self.classes_:
            raise HoldfastError(unknown(label, self.classes_, "label"))
        self.method.shrink(self.model.head.labels.index(label))
        traces = self.model.forget(label)
        if self._remembers_weights():
            traces.append("the importances of the weights")
        self.start_over()
        return ", ".join(traces)

    def merge(self, other: Learner) -> None:
        """Add what another learner has learnt with slda on the same frozen encoder, exactly."""
        mine, its, summed = self.model.head, other.model.head, self._sums_of()
        same = summed is not None and summed == other._sums_of()
        if not same or not isinstance(mine, SLDAHead) or not isinstance(its, SLDAHead):
            raise HoldfastError("only learners with slda on the same frozen encoder can be merged")
        mine.merge(its)
        self.start_over()
        self.history += other.history
        self.tasks_seen += other.tasks_seen

    def _sums_of(self) -> tuple[Any, ...] | None:
        """Return which vectors its sums are of, and how they are kept; None if it knows more than sums."""
        head = self.model.head
        more = self.model.adapted or self._remembers_weights()
        if self.origin is None or not isinstance(head, SLDAHead) or more:
            return None
        settings = self.origin.settings
        return self.origin.fingerprint, settings["vector"], settings["max_length"], head.past.scatter

    def _remembers_weights(self) -> bool:
        """Whether the method's state holds something about single weights."""
        kinds = self.method.state.items()
        return any(getattr(self.method, name) for name, kind in kinds if kind in ("weights", "zeros"))

    # ---- learning ---------------------------------------------------------------------------------------

    def learn(
        self, task: Task | Sequence[str], labels: Sequence[str] | None = None, name: str | None = None
    ) -> Lesson:
        """Search, adopt the chosen training, consolidate.

        Texts with their labels are a task too: some are held out for the choices to be made, and a head that
        absorbs sentences takes those in as well once they have served.
        """
        own_split = isinstance(task, Task)
        if not isinstance(task, Task):
            given = () if labels is None else labels
            task = task_of(task, given, name or f"lesson {self.tasks_seen + 1}")
        known = self.classes_
        with self._whole_or_not_at_all():
            self.begin(task)
            before = self._score_of(known, self.vectors.before, among=known)
            decision = self._drive(task)
            trial = self.trial(task, decision.trial.choice)
            # As it was trained: a field that the user has fixed may say otherwise.
            trained = self._adopt(trial)
            with self._ledger.counting() as consolidation:
                trained.consolidate(self, task)
            self.method.load_state_dict(trained.state_dict())
            self.vectors.move(trained.moves)
            after = self._score_of(known, self.vectors.after)
            if not own_split:
                self.model.head.absorb_valid(self.vectors)
            self.vectors.move(False)  # nothing of the task stays in memory
            chosen = added(trial.passes, *trial.borrowed.values(), consolidation)
            trials = list(self._trials.values())
            rest = search_passes(trial, trials, self._ledger.borrowed)
            lesson = Lesson(task.name, decision, trial, trials, chosen, rest, (before, after))
            self.history.append(lesson.entry(task, self._new))
            self.tasks_seen += 1
            self._forget_task()
        self.accelerator.wait_for_everyone()  # others may still be reading the trial
        self._workspace.retire([trial.path for trial in trials])
        return lesson

    def begin(self, task: Task) -> None:
        """Check a task and make room for its labels, once, before any trial."""
        head = self.model.head
        head.admit(task)
        rows = {f"head.{name}": value for name, value in head.add(task.labels).items()}
        key = _digest(repr((task.name, task.train, task.valid)))
        if key != self._task_key:  # a task that is begun again has taught its labels already
            self._forget_task()  # an interrupted task may have left something
            self.past_rows = [head.labels.index(label) for label in head.seen]
            self._new = [label for label in task.labels if label not in head.seen]
            if self.origin is not None:  # in daily use the labels tell the scenario
                self.scenario = "class-incremental" if self._new else "domain-incremental"
        head.teach(task.labels)
        if rows:
            self.method.grow(rows)
        self.model.to(self.accelerator.device)
        self._task = task
        self._task_key = key
        self.vectors = TaskVectors(task, self._embed, self._start_vectors, self._count_moved)
        self.start_here()
        self.progress.task(self.tasks_seen + 1, task.name)

    def start_here(self) -> None:
        """Let every training of the task start from what the model and the method are now."""
        self._start = (P.snapshot(self.model), self.method.state_dict(), self.model.memory())
        self._started = ""

    def _drive(self, task: Task) -> Decision:
        """Follow the method's plan: train what it yields, until it decides."""
        plan, answer = self.method.plan(self, task), None
        while True:
            try:
                choice = plan.send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            answer = self.trial(task, choice)

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Leave the learner as it was if a lesson is broken off (Ctrl-C in a notebook, a full disk).

        Finished trainings stay on disk: the same lesson, asked for again, goes on from them.
        """
        state, scenario = self.state(), self.scenario
        try:
            yield
        except BaseException:
            self.load_state(*state)
            self.scenario = scenario
            self._forget_task()
            raise

    # ---- one training -----------------------------------------------------------------------------------

    def trial(self, task: Task, choice: Choice) -> StoredTrial:
        """Train with these hyper-parameters from the task's start, and put everything back."""
        key = json.dumps(to_json(choice), sort_keys=True)
        if key not in self._trials:
            method = self.method.choosing(choice)
            path = self._workspace.agreed(self._place(method))
            self.progress.trial(len(self._trials) + 1, describe(choice, moves=method.moves))
            found = self._workspace.has(path)
            if not found:
                try:
                    self._train(task, method, path)
                finally:
                    self._become(*self._start)
            meta = read_meta(path)
            meta["score"] = math.nan if meta["score"] is None else meta["score"]
            trial = StoredTrial(path, self.accelerator.device, choice, found=found, **meta)
            self._trials[key] = trial
            self.progress.scored(trial.score, found)
        return self._trials[key]

    def _train(self, task: Task, method: Method, path: Path) -> None:
        """Train once as a method says, and write the trial."""
        began, head = time.perf_counter(), self.model.head
        with self._ledger.borrowing() as borrowed, self._ledger.counting() as passes:
            self._become(*self._start)
            result = self._fit(task, method, method.prepare(self, task)) if method.moves else FitResult()
            self.count("train", forward=result.batches, backward=result.batches)
            self.vectors.move(method.moves)
            notes = head.absorb(self.vectors)
            score = head.score(self.vectors.after("valid"))
            tensors, numbers = _split(method.state_dict() | result.carried)
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

    def _fit(self, task: Task, method: Method, training: Training) -> FitResult:
        with self.model.probed(task.labels):
            return fit(
                self.model,
                training,
                self.train,
                self.valid,
                self.settings,
                seed=self.task_seed,
                accelerator=self.accelerator,
                deployed=lambda epoch: method.deployed(self, training, epoch),
                on_epoch=lambda epoch, losses: self.progress.epoch(epoch, self.settings.epochs, losses),
            )

    def _place(self, method: Method) -> Path:
        """Return the file of a training, named by everything that decides it.

        It lies in this run's own folder, or in the one that runs share: no other training is found there.
        """
        head, settings = self.model.head, to_json(dataclasses.asdict(self.settings))
        if not self._started:
            frozen = {n: t for n, t in self.model.state_dict().items() if n not in self._start[0]}
            self._started = hash_of(frozen, *self._start)
        machine = self.accelerator
        decides = [
            self._started,
            [head.labels, head.seen, self.past_rows],
            settings,
            [self._task_key, self.tasks_seen, self.task_seed, self.scenario],
            [machine.num_processes, machine.device.type, machine.mixed_precision],
        ]
        if self.shared is not None and self.tasks_seen < FIRST_TASKS:
            shared_as = method.shared_as()
            if shared_as is not None:
                return place_of(self.shared, shared_as, *decides, self._reading())
        return place_of(self._workspace.directory, type(method).__name__, method.hparams(), *decides)

    def _reading(self) -> list[Any]:
        """Return how the encoder reads the task, beside its weights: a folder may be shared with others."""
        config = {k: v for k, v in self.model.encoder.config.to_dict().items() if k != "_name_or_path"}
        tokens = [self._encoded(part).tokens for part in ("train", "valid")]
        return [json.dumps(config, sort_keys=True, default=str), tokens]

    def _adopt(self, trial: StoredTrial) -> Method:
        """Make a trial the model: weights, state, hyper-parameters; return the method as it trained."""
        tensors = trial.read()
        self._become(tensors.pop("weights"), tensors | trial.state, tensors.pop("memory", {}))
        trained = self.method.choosing(trial.choice)
        self.method.set(**{n: value for n, value in trial.choice.items() if n not in self.fixed})
        return trained

    # ---- what methods see: the task at hand ---------------------------------------------------------------

    @property
    def start(self) -> Params:
        """θ_{k-1}: the weights that every training of the task starts from, with rows for new labels."""
        return self._start[0]

    @property
    def train(self) -> Examples:
        """The task's training sentences."""
        return self._encoded("train")

    @property
    def valid(self) -> Examples:
        """The task's validation sentences."""
        return self._encoded("valid")

    @property
    def batches(self) -> int:
        """The number of batches in one pass over the training sentences."""
        return math.ceil(len(self._task.train) / self.settings.batch_size)

    @property
    def task_seed(self) -> int:
        """A seed of (seed, task): every phase and trial sees the same batches and dropout."""
        return int(_digest(f"{self.seed}/{self._task.name}"), 16) % 2**31

    def rates(self, grid: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Return the learning rates to try: a grid, or the one rate that the user has fixed."""
        return (self.method.lr,) if "lr" in self.fixed else grid or self.settings.rates

    def look_ahead(self, task: Task, lr: float) -> StoredTrial:
        """Train with the task loss only: where the task alone would take the weights."""
        trial = self.trial(task, {"lr": lr} | dict.fromkeys(self.method.strengths, 0.0))
        self._ledger.borrow(LOOK_AHEAD, {"train": trial.passes["train"]})
        return trial

    @contextmanager
    def using(self, trial: Trial) -> Iterator[Mapping[str, Any]]:
        """Run the block with the weights and the head's memory of a trial; gives the method's state."""
        own, memory, tensors = P.snapshot(self.model), self.model.memory(), trial.read()
        try:
            P.restore(self.model, tensors.pop("weights"))
            self.model.load_memory(tensors.pop("memory", {}))
            yield {**tensors, **trial.state}
        finally:
            P.restore(self.model, own)
            self.model.load_memory(memory)

    def once(self, what: str, compute: Callable[[], Params], *, lr: float | None = None) -> Params:
        """Do work that trials (of one learning rate) share once, and forget it when the task ends."""
        key = (what, lr)
        if key not in self._once:
            with self._ledger.borrowing() as borrowed, self._ledger.counting() as passes:
                value = compute()
                self._ledger.borrow(what, passes)
            self._once[key] = (value, borrowed)
        value, borrowed = self._once[key]
        self._ledger.borrowed |= borrowed
        return value

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Count passes over the data, in batches."""
        self._ledger.count(phase, forward=forward, backward=backward)

    def _encoded(self, part: Literal["train", "valid"]) -> Examples:
        head = self.model.head
        key = (part, *head.labels)
        if key not in self._examples:
            loss = objective(
                self.scenario if head.has_past else "domain-incremental",
                self._task,
                part,
                rows=head.labels,
                seen=head.seen,
                class_weights=self.settings.class_weights,
            )
            found = self.model.encode(getattr(self._task, part), loss)
            if not head.has_past:  # a head for this task alone: labels of other tasks do not count
                found = replace(found, labels=[IGNORED if row < 0 else row for row in found.labels])
            self._examples[key] = found
        return self._examples[key]

    # ---- sentence vectors -------------------------------------------------------------------------------

    def _embed(self, texts: Sequence[str]) -> Tensor:
        return self.model.embed(texts, on_batch=self.progress.looked)

    def _count_moved(self) -> None:
        self.count("moved features", forward=self.batches, backward=0)

    def _start_vectors(self, part: Literal["train", "valid"]) -> Tensor:
        """Return the vectors of a split with the weights of the task's start; those of both are kept."""

        def compute() -> Params:
            if part == "train":  # as everywhere, validation is not counted
                self.count("features", forward=self.batches, backward=0)
            own, adapted = P.snapshot(self.model), self.model.adapted
            P.restore(self.model, self.start)
            self.model.adapted = bool(self._start[2].get("adapted", adapted))
            try:
                return {part: self._embed(getattr(self._task, part).texts)}
            finally:
                P.restore(self.model, own)
                self.model.adapted = adapted

        if part == "train":
            return self.once("features", compute)[part]
        if part not in self._valid_vectors:
            self._valid_vectors = compute()
        return self._valid_vectors[part]

    def _score_of(
        self,
        known: Sequence[str],
        vectors: Callable[[Literal["train", "valid"]], Taught],
        among: Sequence[str] | None = None,
    ) -> float | None:
        """Return the score on validation sentences of known labels; None outside daily use or without any."""
        places = [i for i, label in enumerate(self._task.valid.labels) if label in known]
        if self.origin is None or not places:
            return None
        head, valid = self.model.head, vectors("valid")
        some = Taught(valid.features[places], [valid.labels[i] for i in places])
        return head.score(some, None if among is None else [head.labels.index(label) for label in among])

    # ---- housekeeping -----------------------------------------------------------------------------------

    def start_over(self) -> None:
        """Forget a task that was not finished."""
        self._forget_task()
        if self._workspace.given is None:  # in a directory that was given others may have theirs
            self.drop_trials()

    def work_in(self, directory: Path) -> None:
        """Keep trials in this directory from now on."""
        self._workspace = Workspace(directory, self.accelerator)

    def drop_trials(self) -> None:
        """Delete the trial files of finished tasks."""
        self._workspace.clear()

    def _forget_task(self) -> None:
        """Forget the task at hand: its sentences, its trials, what they shared."""
        self._task_key = ""
        self._trials = {}
        self._examples = {}
        self._once = {}
        self._valid_vectors = {}
        self._ledger = Ledger()
        self._started = ""

    def _tensors(self) -> dict[str, Params]:
        """Return the model's own: weights, and what a computed head remembers."""
        memory = self.model.memory()
        return {"weights": P.snapshot(self.model)} | ({"memory": memory} if memory else {})

    def _become(self, weights: Params, state: Mapping[str, Any], memory: Params) -> None:
        P.restore(self.model, weights)
        self.method.load_state_dict(state)
        self.model.load_memory(memory)


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Params], dict[str, Any]]:
    """Return a method's state as groups of tensors and as numbers."""
    tensors = {name: value for name, value in state.items() if isinstance(value, dict)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
