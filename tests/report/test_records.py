"""What is no record of ours, or not a whole one, is left out with a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_report import folder, matrix, record_of, spec  # noqa: F401

from holdfast.report import write_report


@pytest.mark.parametrize(
    "change",
    [
        {"scores": None},
        {"scores": {"test": []}},
        {"scores": {"test": [[0.9, None], [0.5, None]]}},
        {"chosen": None},
        {"tasks": ["a"]},
        {"spec": {"method": "seq"}},
        {"spec": None},
        {"spec": spec("ewc").to_json() | {"seed": None}},
        {"scores": {"test": [["much"]]}, "tasks": ["a"]},
        {"trials": [{}] * 3},
        {"trials": [{"task": "a", "trials": [{"choice": {"lam": "much"}, "score": 0.1}]}] * 3},
        {"chosen": [{"task": "a", "lam": [], "score": 0.1}] * 3},
        {"chosen": [{"task": "a", "score": 0.1, "spread": {"w": {"bins": 3}}}] * 3},
        {"passes": {"chosen": {"train": {"forward": "many"}}}},
        {"seconds": None},
    ],
    ids=repr,
)
def test_a_record_that_is_not_whole_is_left_out(
    folder: Path,  # noqa: F811
    change: dict[str, Any],
) -> None:
    good = sum(len(section.made) for section, _ in write_report(folder).sections)
    record = record_of(spec("ewc"), matrix(0.1, 0.2, 0.3)) | change
    (folder / "half.json").write_text(json.dumps(record))
    written = write_report(folder)
    assert ["half.json left out: not a record" in line for line in written.complaints] == [True]
    assert sum(len(section.made) for section, _ in written.sections) == good
