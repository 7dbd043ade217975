"""Learner: a model and a method that learn one task after another and classify texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from typing_extensions import override

from holdfast.data.tasks import Scenario, Split, Task, check_labels, task_of
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.fields import from_json, to_json
from holdfast.heads.calibration import set_scores
from holdfast.learning import corrections, directory, hub, merging, sections
from holdfast.learning.at_hand import AtHand, put_down, whole_or_not_at_all
from holdfast.learning.corrections import Correction
from holdfast.learning.directory import EVERYDAY
from holdfast.learning.lesson import Lesson
from holdfast.learning.sections import KEEP, MOST_SEED, Origin, Saved, new_key, serial_of
from holdfast.learning.snapshot import Snapshot
from holdfast.learning.trials import Workspace
from holdfast.maths import params as P
from holdfast.maths.metrics import macro_f1
from holdfast.maths.params import Params
from holdfast.methods import METHODS, method_of_learner
from holdfast.methods.base import Method
from holdfast.models import Network, build_classifier
from holdfast.settings import Settings
from holdfast.storage.files import write_bytes
from holdfast.storage.generations import Store
from holdfast.storage.tensors import FORMAT

MOST_BYTES = 4e9  # limit for a head, of which learning holds a second copy


@dataclass
class Learner:
    """A model and a method that learn one task after another, without saving any text.

    >>> from holdfast import Learner
    >>> learner = Learner.create("encoder")  # a folder, a hub id or, by default, "minilm"
    >>> _ = learner.learn(["wake me at six", "wake me at nine"], ["alarm", "alarm"])
    >>> _ = learner.learn(["play some jazz", "play a song"], ["music", "music"])  # next week
    >>> learner.predict(["play jazz"])
    ['music']
    >>> learner.save("intents")
    1
    >>> Learner.load("intents").classes_
    ['alarm', 'music']
    """

    model: Network
    method: Method
    scenario: Scenario = "class-incremental"
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    fixed: frozenset[str] = frozenset()
    """Hyper-parameters that the user has set; the search does not change them."""
    workspace: Path | None = None
    """Directory of trials, from which a killed run resumes; by default a temporary one."""
    shared: Path | None = None
    """Directory in which runs of one study share the trials of their first tasks."""
    progress: Progress = field(default_factory=Progress)
    accelerator: Accelerator = field(default_factory=Accelerator)
    origin: Origin | None = None
    """What the learner was created from; None if it cannot be saved."""
    history: list[dict[str, Any]] = field(default_factory=list, init=False)
    """One entry per lesson or correction, without any text."""
    key: str = field(default_factory=new_key, init=False, repr=False)
    """Secret key of the ids in the history."""
    keys: list[str] = field(default_factory=list, init=False, repr=False)
    """Keys of the learners that were merged into this one, for the ids of their lessons."""
    migrates: bool = field(default=False, init=False)
    """Whether the learner comes from a state of an older format, which the next commit replaces."""
    tasks_seen: int = 0
    at_hand: AtHand | None = field(default=None, init=False, repr=False)
    """The task that is being learnt; None between tasks."""
    trial_files: Workspace = field(init=False, repr=False)
    """The directory of trials that is in use."""
    _saved: tuple[Path, int] | None = field(default=None, init=False, repr=False)
    """The directory and generation that the learner was loaded from or last saved as."""

    def __post_init__(self) -> None:
        self.model.to(self.accelerator.device)
        self.trial_files = Workspace(self.workspace, self.accelerator)
        put_down(self)

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes along; the accelerator, temporary files and the task at hand stay here."""
        own = ("accelerator", "trial_files", "at_hand")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.accelerator = Accelerator()
        self.__post_init__()

    # ---- creating, saving, loading ----------------------------------------------------------------------

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
        """Create a learner from the names of its encoder and method; `generations` is how many are kept."""
        method_of_learner(method, hyper_parameters)
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
            raise HoldfastError(f"the seed {seed} is not a whole number between 0 and {MOST_SEED}")
        return cls._made(model, method, settings, seed, generations, hyper_parameters, fixed=hyper_parameters)

    @classmethod
    def _made(
        cls,
        model: str,
        method: str,
        settings: Settings,
        seed: int,
        generations: int,
        hyper_parameters: Mapping[str, Any],
        *,
        fixed: Iterable[str],
        online: bool = True,
    ) -> Self:
        """Return a new learner; unless `online`, its encoder must already be on this machine."""
        made, name = METHODS[method](**hyper_parameters), directory.named(model)
        classifier = build_classifier(name, settings, seed=seed, method=made, online=online)
        fingerprint = directory.encoder_fingerprint(classifier)
        chosen: Any = to_json(dataclasses.asdict(settings))
        origin = Origin(method, name, fingerprint, chosen, seed, generations)
        return cls(classifier, made, settings=settings, seed=seed, fixed=frozenset(fixed), origin=origin)

    @classmethod
    def load(cls, path: str | Path, generation: int | None = None, *, model: str | None = None) -> Self:
        """Load the learner of a directory: its current generation, or the given one.

        `model` says where its encoder is now, if it has moved. Unless a model is named here, nothing is
        downloaded.
        """
        path = Path(path)
        found = Store(path).load(generation)
        saved = sections.read(found, path)
        origin, (tensors, meta) = saved.origin, saved.state
        hyper_parameters = from_json(METHODS[origin.method], meta["hparams"])
        if model is None and Path(origin.model).is_absolute() and not Path(origin.model).is_dir():
            raise HoldfastError(
                f"the encoder of {path} is not in {origin.model}; name the folder where it is now, "
                "with --model or load(model=...)"
            )
        settings = replace(Settings(), **from_json(Settings, origin.settings))
        learner = cls._made(
            model or origin.model,
            origin.method,
            settings,
            origin.seed,
            origin.keep,
            hyper_parameters,
            fixed=saved.fixed,
            online=bool(model),
        )
        sections.check_head(saved, learner.model.head.kind, path)
        own = learner.made_of.fingerprint
        if different := own.differences(origin.fingerprint):
            raise HoldfastError(
                f"{path} was made with another encoder than {learner.made_of.model!r}: its "
                f"{' and '.join(different)} differ; restore that encoder, or name the folder where it is now"
            )
        learner.check_room(meta["labels"], "the state is damaged")
        try:
            learner.load_state(tensors, meta)
        except HoldfastError as error:
            raise HoldfastError(f"{path} is damaged: {error}; restore it, or go back a generation") from error
        learner.key, learner.keys = saved.key, saved.keys
        learner.migrates = saved.format < FORMAT
        learner._saved = path.resolve(), found.number
        return learner

    @property
    def generation(self) -> int:
        """The generation that the learner was loaded from or last saved as; 0 if there is none."""
        return self._saved[1] if self._saved else 0

    @property
    def made_of(self) -> Origin:
        """What the learner was created from; raises if it cannot be saved."""
        if self.origin is None:
            raise HoldfastError("this learner has no origin and cannot be saved; make it with Learner.create")
        return self.origin

    def save(self, path: str | Path, *, force: bool = False) -> int:
        """Commit the learner atomically as the directory's next generation; return its number.

        Refuse if the directory's current generation is not the one this learner was loaded from or last
        saved as: the new generation would lack what the current one has learnt. `force` saves all the same.
        """
        path = Path(path)
        with directory.working_in(path):
            current = Store(path).current
            if not force and current is not None and self._saved != (path.resolve(), current):
                own = f"generation {self._saved[1]} of {self._saved[0]}" if self._saved else "a new learner"
                raise HoldfastError(
                    f"{path} is at generation {current}, but this learner comes from {own}: saving would "
                    "drop what that generation has learnt; load it and learn there, combine the two with "
                    "Learner.merge, or save with force=True"
                )
            return self.commit(path)

    def commit(self, path: Path, *, keep: int | None = None) -> int:
        """Save for a caller that holds the lock; `keep` is the number of generations kept this time."""
        origin = self.made_of
        saved = Saved(origin, sorted(self.fixed), self.key, self.state(), keys=self.keys)
        tensors, parts = sections.written(saved, path, self.model.head.kind)
        card = self.card()  # one that cannot be made is an error before the commit
        if self.migrates:
            self.progress.note(
                f"note: {path} is written in format {FORMAT} from now on; older versions cannot read it"
            )
        number = Store(path, keep or origin.keep).commit(tensors, parts)
        self._saved, self.migrates = (path.resolve(), number), False
        self.write_card(path, card)
        return number

    def card(self) -> str:
        """Return the model card."""
        return directory.card(self.made_of, self.model.head, self.history, self.classes_)

    def write_card(self, path: Path, card: str) -> None:
        """Write the model card; a commit does not fail because the card cannot be written."""
        with suppress(HoldfastError):
            write_bytes(path / "README.md", card.encode(), private=True)

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Return everything that is saved: weights, the method's state, labels, hyper-parameters, history."""
        tensors, numbers = Snapshot.of(self.model, self.method).parts()
        meta = {
            "labels": list(self.model.head.labels),
            "seen": list(self.model.head.seen),
            "tasks_seen": self.tasks_seen,
            "history": list(self.history),
            "hparams": self.method.hparams(),
            "numbers": numbers,
        }
        return tensors, meta

    def load_state(self, tensors: Mapping[str, Params], meta: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        device = self.accelerator.device
        self.model.head.become(meta["labels"], meta["seen"])
        self.model.to(device)
        self._check_tensors(tensors)
        moved = {group: {n: t.to(device) for n, t in params.items()} for group, params in tensors.items()}
        self.method.set(**meta["hparams"])
        Snapshot.joined(moved, meta["numbers"]).restore(self.model, self.method)
        self.tasks_seen, self.history = meta["tasks_seen"], list(meta.get("history", ()))

    def _check_tensors(self, tensors: Mapping[str, Params]) -> None:
        """Raise HoldfastError unless all tensors have the names and shapes that the model needs."""
        weights, memory = P.trainable(self.model), dict(tensors.get("memory", {}))
        if wrong := P.misfit(weights, tensors["weights"]):
            raise HoldfastError(f"the weight {wrong} is missing, unknown or of another shape")
        memory.pop("adapted", None)
        if wrong := self.model.head.misfit(memory):
            raise HoldfastError(f"the head's {wrong} is missing, unknown or of another shape")
        if wrong := self.method.misfit(self.model, tensors):
            raise HoldfastError(f"the method's {wrong} is missing, unknown or of another shape")

    # ---- predicting -------------------------------------------------------------------------------------

    @property
    def classes_(self) -> list[str]:
        """Labels that can be predicted."""
        return [self.model.head.labels[row] for row in self.model.head.visible_rows()]

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the label of each text: the argmax of its raw logits."""
        classes, rows = self.classes_, self._rows()
        return [classes[i] for i in self.model.logits(texts)[:, rows].argmax(1).tolist()]

    def predict_proba(self, texts: Sequence[str]) -> np.ndarray:
        """Return the probabilities of `classes_`, one row per text."""
        found: np.ndarray = self.probabilities(self.model.embed(texts)).numpy()
        return found

    def is_unknown(self, texts: Sequence[str], reject: float = 0.95) -> list[bool]:
        """Return whether each text is further from all classes than a share `reject` of known sentences."""
        return self.far_out(self.model.embed(texts), reject)

    def far_out(self, features: Tensor, reject: float) -> list[bool]:
        """Return the same as `is_unknown` for sentence vectors."""
        self._rows()
        head, limit = self.model.head, self.model.head.threshold(reject)
        found: list[bool] = (head.distances(features) > limit).tolist()
        return found

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Return the probabilities of `classes_` for sentence vectors."""
        head = self.model.head
        device = next(self.model.encoder.parameters()).device
        logits = head(features.to(device))[:, self._rows()].double().cpu()
        found: Tensor = (logits / head.temperature).softmax(1)
        return found

    def predict_set(self, texts: Sequence[str], cover: float = 0.95) -> list[list[str]]:
        """Return a set of labels for each text, such that a share `cover` of known sentences has its label.

        The promise holds on average over sentences like those taught. A set can be empty where the
        best label alone would be right more often: then it is left out for some texts, always the same ones.
        """
        return self.sets(texts, self.probabilities(self.model.embed(texts)), cover)

    def sets(self, texts: Sequence[str], probabilities: Tensor, cover: float) -> list[list[str]]:
        """Return the same as `predict_set` from probabilities."""
        limit, classes = self.model.head.set_threshold(cover), self.classes_
        part = torch.tensor(
            [int(sha256(text.encode()).hexdigest()[:12], 16) / 16**12 for text in texts], dtype=torch.float64
        )
        inside = set_scores(probabilities, part) <= limit
        order = probabilities.argsort(1, descending=True)
        return [
            [classes[i] for i in ranked if own[i]]
            for ranked, own in zip(order.tolist(), inside.tolist(), strict=True)
        ]

    def score(self, texts: Split | Sequence[str], labels: Sequence[str] | None = None) -> float:
        """Return the macro-F1 on a split, or on texts and their labels."""
        if not isinstance(texts, Split):
            texts = Split(tuple(texts), tuple(() if labels is None else labels))
        return macro_f1(texts.labels, self.predict(texts.texts))

    def _rows(self) -> list[int]:
        """Return the head's rows of `classes_`; raise if there are none."""
        rows = self.model.head.visible_rows()
        if not rows:
            raise HoldfastError("this learner has no labels yet; teach it some")
        return rows

    # ---- corrections -------------------------------------------------------------------------------------

    def remove(self, texts: Sequence[str], labels: Sequence[str]) -> Correction:
        """Take sentences out again that were learnt under these labels, once for each time they are given.

        A label without sentences is forgotten. Sentences that were never learnt corrupt the sums; they are
        noticed, and refused, where the sums of the rest become impossible.
        """
        return corrections.remove(self, texts, labels)

    def relabel(self, texts: Sequence[str], labels: Sequence[str], to: str) -> Correction:
        """Give sentences that were learnt under these labels another label, as if it had been theirs."""
        return corrections.relabel(self, texts, labels, to)

    def rename_label(self, old: str, new: str) -> Correction:
        """Rename a label; what it has learnt stays."""
        return corrections.renamed(self, old, new)

    def merge_labels(self, labels: Sequence[str], into: str) -> Correction:
        """Unite labels under one of them or under a new name, as if all had been taught under it."""
        return corrections.united(self, labels, into)

    def forget(self, label: str) -> str:
        """Remove a label; return what still carries traces of it, or an empty string."""
        return corrections.forget(self, label)

    def drop_names(self, label: str) -> bool:
        """Remove from the history the ids of all lessons, and the names that contain a label.

        Return whether there were any. Lessons that are called by their number keep it.
        """
        return corrections.drop_names(self, label)

    def merge(self, other: Learner, *, again: bool = False) -> Correction:
        """Add what another learner with the same kind of head on the same frozen encoder has learnt.

        Refuse a learner that has learnt some of the same, such as a copy; `again` counts it twice on purpose.
        """
        return merging.taken_over(self, other, again=again)

    # ---- learning ---------------------------------------------------------------------------------------

    def learn(
        self, task: Task | Sequence[str], labels: Sequence[str] | None = None, name: str | None = None
    ) -> Lesson:
        """Learn a task: search for hyper-parameters, adopt the chosen trial, consolidate.

        Texts and labels may be given instead of a task. Some are then held out for validation; a computed
        head absorbs those too at the end.
        """
        own_split = isinstance(task, Task)
        if not isinstance(task, Task):
            given = () if labels is None else labels
            task = task_of(task, given, name or f"lesson {self.tasks_seen + 1}")
        known = self.classes_
        with whole_or_not_at_all(self):
            hand = self.begin(task)
            before = hand.score_on(known, hand.vectors.before, among=known)
            decision = hand.search()
            trial = hand.trial(task, decision.trial.choice)
            # It has the trial's hyper-parameters; self.method keeps those that the user has fixed.
            trained = hand.adopt(trial)
            consolidation = hand.consolidate(trained)
            after = hand.score_on(known, hand.vectors.after)
            if not own_split:
                self.model.head.absorb_valid(hand.vectors)
            lesson = hand.lesson(decision, trial, consolidation, (before, after))
            self.history.append(lesson.entry(task, hand.new) | serial_of(self.origin))
            self.tasks_seen += 1
            put_down(self)
        self.accelerator.wait_for_everyone()  # other processes may still be reading the trial
        self.trial_files.retire([trial.path for trial in lesson.trials])
        return lesson

    def begin(self, task: Task) -> AtHand:
        """Check a task and add its labels to the head; return the task at hand, which starts from here."""
        head = self.model.head
        head.admit(task)
        check_labels(label for label in task.labels if label not in head.labels)
        self.check_room(task.labels, "are these labels, not identifiers or texts?")
        rows = {f"head.{name}": value for name, value in head.add(task.labels).items()}
        hand = self.at_hand
        if hand is None or not hand.is_for(task):  # one that is begun again has already added its labels
            put_down(self)  # an interrupted task may have left state
            hand = AtHand(self, task)
            if self.origin is not None:  # in everyday use the labels determine the scenario
                self.scenario = "class-incremental" if hand.new else "domain-incremental"
        head.teach(task.labels)
        if rows:
            self.method.grow(rows)
        self.model.to(self.accelerator.device)
        self.at_hand = hand
        hand.begin()
        self.progress.task(self.tasks_seen + 1, task.name)
        return hand

    def check_room(self, labels: Iterable[str], hint: str) -> None:
        """Raise if the head would be too large with these labels, before anything is computed for them."""
        head = self.model.head
        every = len({*labels, *head.labels})
        if (needed := every * head.bytes_per_label) > MOST_BYTES:
            raise HoldfastError(
                f"{every:,} labels would take {needed / 1e9:.0f} GB (at most {MOST_BYTES / 1e9:.0f}); {hint}"
            )

    # ---- files of trials ----------------------------------------------------------------------------------

    def start_over(self) -> None:
        """Discard an unfinished task."""
        put_down(self)
        if self.trial_files.given is None:  # a given directory may hold trials of others
            self.drop_trials()

    def work_in(self, directory: Path) -> None:
        """Keep trials in this directory from now on."""
        self.trial_files = Workspace(directory, self.accelerator)

    def drop_trials(self) -> None:
        """Delete all trial files."""
        self.trial_files.clear()

    # ---- sharing ----------------------------------------------------------------------------------------

    def save_pretrained(self, path: str | Path, *, encoder: str | None = None) -> None:
        """Write a copy to share: one generation, with a model card, without the ids of lessons.

        `encoder` is the name under which others find the encoder, if it is a folder here.
        """
        hub.save_shared(self, Path(path), encoder=encoder)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        revision: str | None = None,
        model: str | None = None,
        token: str | None = None,
    ) -> Self:
        """Load a learner from a folder or from a repository of the Hugging Face hub.

        Its encoder must be on this machine, or named by `model`.
        """
        with hub.found(source, revision=revision, token=token) as path:
            learner = cls.load(path, model=model)
        if path != Path(source):
            learner._saved = None  # that folder is gone
        return learner

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        encoder: str | None = None,
        token: str | None = None,
        message: str = "Push a Holdfast learner",
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub; return the id of the commit."""
        return hub.push(self, repo_id, private=private, encoder=encoder, token=token, message=message)

    @override
    def __repr__(self) -> str:
        made = f"{self.origin.method}, {directory.called(self.origin)}" if self.origin else "not saveable"
        lessons = len(self.history)
        told = f"{lessons} lesson" if lessons == 1 else f"{lessons} lessons"
        return f"Learner({made}, {len(self.classes_)} labels, {told})"
