"""Settings and limits of the service."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Self

TOKEN = "HOLDFAST_TOKEN"  # the variable that may hold the token
VARIABLE = "HOLDFAST_SERVING"  # hands the settings to the processes of `--workers`


@dataclass(frozen=True)
class ServiceLimits:
    """ServiceLimits of one process of the service."""

    body: int = 2**20
    """Bytes of a request, other than an upload."""
    upload: int = 16 * 2**20
    """Bytes of a request that teaches or compares."""
    reading: int = 256 * 2**20
    """Bytes of all requests that are read or answered at a time."""
    characters: int = 10_000
    """Characters of a text."""
    label: int = 200
    """Characters of a label."""
    texts: int = 256
    """Texts in a prediction request."""
    suggest: int = 5_000
    """Texts in a request for suggestions."""
    labels: int = 10_000
    """Labels that one request may teach."""
    queue: int = 2048
    """Texts that may wait for an answer."""
    batch: int = 256
    """Texts that are classified together."""
    wait: float = 0.004
    """Seconds to wait for requests of clients that have just been answered."""
    jobs: int = 8
    """Unfinished jobs per learner."""
    slow: float = 10.0
    """Seconds in which the head, and then the body, of a request must arrive."""
    timeout: float = 30.0
    """Seconds for an answer."""
    grace: float = 20.0
    """Seconds for open requests and jobs when the service stops."""
    poll: float = 0.25
    """Seconds between two looks for a new generation."""
    loaded: int = 8
    """Learners kept in memory."""
    connections: int = 512
    """Open connections."""


@dataclass(frozen=True)
class Serving:
    """What is served, and how."""

    path: str
    """A learner's directory, an exported artefact, or a folder of them."""
    token: str = field(repr=False)
    """What a request must show to change anything."""
    reports: str
    """Private directory of the reports of jobs."""
    many: bool = False
    """Whether `path` is a folder of learners, which are then named by ?state=."""
    model: str | None = None
    """Folder or name of the encoder, if it is no longer where it was; for a new learner: its encoder."""
    threads: int = 1
    """Threads of the process, and of a job's."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may be addressed to; empty: any."""
    supervisor: int | None = None
    """Process without which this one ends, if it is one of several workers."""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    read_only: bool = False
    """Whether the service only answers: others teach what it serves."""

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that `to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        return cls(**found | {"hosts": tuple(found["hosts"]), "limits": ServiceLimits(**found["limits"])})
