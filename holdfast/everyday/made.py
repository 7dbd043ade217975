"""Say what made a generation, from its history. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def made_by(number: int, history: Sequence[Mapping[str, Any]]) -> str:
    """Return what made a generation, such as "learn: week2"; empty if its history does not say.

    >>> made_by(2, [{"task": "week1", "generation": 1}, {"task": "week2", "generation": 2}])
    'learn: week2'
    >>> made_by(3, [{"task": "1 of 'a' removed", "correction": "remove", "generation": 3}])
    "remove: 1 of 'a' removed"
    >>> made_by(4, [{"task": "week1", "generation": 3}])
    ''
    """
    latest = history[-1] if history else {}
    if not latest or latest.get("generation") != number:
        return ""
    return f"{latest.get('correction') or 'learn'}: {latest['task']}"
