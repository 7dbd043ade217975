"""Spec: the settings of one run. A hash of them names its record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data import STREAMS, check_stream_name, load_stream
from holdfast.data.readers import digest
from holdfast.data.tasks import Stream
from holdfast.errors import HoldfastError
from holdfast.fields import fields_of, from_json, parse_setting, to_json, unknown
from holdfast.methods import METHODS
from holdfast.methods.base import Method
from holdfast.models.sources import folder_digest, is_own
from holdfast.settings import MOST_THREADS, Settings, preset

NAMED = {"plan": Settings.plan, "optimizer": Settings.optimizer}
"""Settings that every spec names, even at their defaults: records of another default are other runs."""
BEFORE = {"plan": "paper-v1", "optimizer": "adamw"}
"""What specs stand for that name neither: they were made before a run could choose."""
SEEDS = 2**32  # every generator accepts smaller seeds, even multiplied as in random_features.py


@dataclass(frozen=True)
class Spec:
    """One run, as the user requested it."""

    method: str
    stream: str
    order: str | None = None
    seed: int = 0
    preset: str = "full"
    per_class: int | None = None
    model: str = "minilm"
    set: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    tasks: int | None = None
    """Number of tasks to learn; None means all. A preallocated head has rows for the whole stream."""

    @classmethod
    def create(cls, *, method: str, stream: str, settings: Sequence[str] = (), **rest: Any) -> Spec:
        """Return a checked spec from user input; `settings` are `name=value` strings."""
        if method not in METHODS:
            raise HoldfastError(unknown(method, list(METHODS), "method"))
        check_stream_name(stream)
        preset(rest.get("preset", "full"))
        for name, least in (("tasks", 2), ("threads", 1), ("per_class", 1)):
            if rest.get(name) is not None and rest[name] < least:
                raise HoldfastError(f"{name}: at least {least}, not {rest[name]}")
        if rest.get("threads", 1) > MOST_THREADS:
            raise HoldfastError(f"threads: at most {MOST_THREADS}, not {rest['threads']}")
        if not 0 <= rest.get("seed", 0) < SEEDS:
            raise HoldfastError(f"seed: from 0 to {SEEDS - 1}, not {rest['seed']}")
        parsed = (parse_setting(item, METHODS[method], Settings) for item in settings)
        chosen = NAMED | {name: to_json(value) for name, value in parsed}
        if stream in STREAMS and STREAMS[stream].scenario == "domain-incremental":
            # All labels come with the first domain: no row is added later or unseen, so these two settings
            # have no effect and are dropped.
            chosen = {name: value for name, value in chosen.items() if name not in ("head", "logits")}
        rest["order"] = _order(stream, rest.get("order"))
        return cls(method, stream, set=dict(sorted(chosen.items())), **rest)

    def digest(self) -> str:
        """Return the name of the run's record. The user's data and model count by content, not by name."""
        content = self.to_json()
        if self.stream not in STREAMS:
            content["stream"] = digest(self.stream)
        if is_own(self.model):
            content["model"] = folder_digest(self.model)
        return digest_of(content)

    @property
    def title(self) -> str:
        """A short name of the run."""
        words = [self.method, self.stream, f"order {self.order or 1}", f"seed {self.seed}"]
        own = {n: v for n, v in self.set.items() if n not in ("head", "logits") and NAMED.get(n) != v}
        return " ".join([*filter(None, words), *(f"{name}={value}" for name, value in own.items())])

    @property
    def like(self) -> str:
        """A key that runs of similar duration share."""
        return f"{self.method} {self.stream}"

    def to_json(self) -> dict[str, Any]:
        """Return the spec as the record holds it; `tasks` is omitted if None, as in older versions."""
        content = dataclasses.asdict(self)
        if self.tasks is None:
            del content["tasks"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Spec:
        """Return the spec from the result of `to_json`."""
        return cls(**{**content, "order": _order(content["stream"], content.get("order"))})

    def settings(self) -> Settings:
        """Return the settings: the preset, changed by `per_class`, then by `set`."""
        cap = {} if self.per_class is None else {"train_per_class": self.per_class}
        chosen = {name: value for name, value in self.set.items() if name in fields_of(Settings)}
        usual = preset(self.preset, chosen.get("plan", NAMED["plan"]))
        return dataclasses.replace(usual, **cap | from_json(Settings, chosen))

    def make_method(self) -> tuple[Method, frozenset[str]]:
        """Return the method with the hyper-parameters the user fixed, and their names."""
        method = METHODS[self.method]()
        fixed = frozenset(name for name in self.set if name in method.hyper_parameters())
        method.set(**{name: self.set[name] for name in fixed})
        return method, fixed

    def cut(self, stream: Stream) -> Stream:
        """Return the stream with only the tasks to learn."""
        return dataclasses.replace(stream, tasks=stream.tasks[: self.tasks])

    def load_stream(self, data_dir: Path | None) -> Stream:
        """Read the stream, ordered and capped."""
        settings = self.settings()
        stream = load_stream(
            self.stream,
            order=self.order,
            data_dir=data_dir,
            text_column=settings.text_column,
            label_column=settings.label_column,
        )
        return stream.capped(train=settings.train_per_class, valid=settings.valid_per_class)


def digest_of(content: Mapping[str, Any]) -> str:
    """Return a hash of a spec's JSON, the name of its record."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _order(stream: Any, order: Any) -> Any:
    """Return the order, with one name for the first: "1" in streams with numbered orders, None in others."""
    numbered = stream in STREAMS and 1 in STREAMS[stream].orders
    return ("1" if numbered else None) if order in (None, "", "1") else order
