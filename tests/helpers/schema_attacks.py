"""Requests that schemathesis makes from the service's own schema, sent over HTTP to a thread here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import requests
import schemathesis
from helpers.serving import TOKEN, WRITER, listening
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from requests.exceptions import InvalidHeader
from schemathesis import GenerationMode

from holdfast.serve.serving import ServiceLimits, Serving

SAFE = ("GET", "HEAD")


class Attack:
    """A service of one learner, and what it answered to generated requests."""

    def __init__(self, path: Path, reports: Path, *, writing: bool = False) -> None:
        limits = ServiceLimits(poll=5.0, grace=0.1, jobs=1, timeout=60)
        self.serving = Serving(path=str(path), token=TOKEN, reports=str(reports), limits=limits)
        self.writing = writing
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []

    def check(self, case: Any, address: str, session: requests.Session) -> None:
        """Send a case; note its status, and what must not be in an answer."""
        headers = WRITER if self.writing else {}
        if sum(self.statuses.values()) % 4:  # with a name, this service answers nothing but 404
            (case.query or {}).pop("state", None)
        try:
            every = {**(case.headers or {}), **headers}
            reply = case.call(base_url=address, session=session, headers=every)
        except (InvalidHeader, UnicodeEncodeError):
            return  # a header that no client could send
        route = f"{case.method} {case.path}"
        self.statuses[route, reply.status_code] += 1
        if reply.status_code >= 500 or "Traceback" in reply.text or 'File "' in reply.text:
            self.wrong.append(f"{route}: {reply.status_code} {reply.text[:300]}")
        documented = {int(status) for status in case.operation.definition.raw["responses"]}
        if reply.status_code not in {*documented, 405, 406, 401, 404}:
            self.wrong.append(f"{route}: {reply.status_code} is not in the schema: {reply.text[:200]}")

    def run(self, each: int, seed: int = 0) -> int:
        """Send `each` requests per operation; return how many were sent."""
        with listening(self.serving) as port, requests.Session() as session:
            address = f"http://127.0.0.1:{port}"
            schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
            for found in schema.get_all_operations():
                operation = found.ok()
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    try:
                        strategy = operation.as_strategy(generation_mode=mode)
                    except TypeError:
                        continue

                    @settings(
                        max_examples=each,
                        deadline=None,
                        database=None,
                        derandomize=seed == 0,
                        verbosity=Verbosity.quiet,
                        phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    )
                    @given(case=strategy)
                    def send(case: Any) -> None:
                        self.check(case, address, session)

                    try:
                        send()
                    except Exception as error:
                        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                            raise
        return sum(self.statuses.values())
