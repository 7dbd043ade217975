"""What is no record of ours, or not a whole one, is left out with a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.reports import spec

from holdfast.bench.records import NotARecord, check_record
from holdfast.studies.views import write_report


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
        {"passes": {"chosen": {"train": {"forward": 3}}}},
        {"seconds": None},
        {"seconds": 10**400},
        {"chosen": [{"task": "a", "score": 0.1}], "trials": [{"task": "a", "trials": []}]},
        {"chosen": [{"task": "a", "score": 0.1, "gold": math.nan}] * 3},
        {"spec": spec("la").to_json() | {"set": {"strategy": "zz"}}},
        {"spec": spec("la").to_json() | {"set": {"tau": "x"}}},
        {"spec": spec("la").to_json() | {"set": {"thr": "zz"}}},
        {"spec": spec("la").to_json() | {"set": {"epochs": []}}},
        {"spec": spec("la").to_json() | {"model": {}}},
        {"spec": spec("la").to_json() | {"threads": "2"}},
        {"spec": spec("la").to_json() | {"tasks": [2]}},
    ],
    ids=repr,
)
def test_a_record_that_is_not_whole_is_left_out(
    folder: Path,
    change: dict[str, Any],
) -> None:
    good = sum(len(section.made) for section, _ in write_report(folder).sections)
    record = record_of(spec("ewc"), matrix(0.1, 0.2, 0.3)) | change
    (folder / "half.json").write_text(json.dumps(record))
    written = write_report(folder)
    assert ["half.json left out: not a r" in line for line in written.complaints] == [True]
    assert sum(len(section.made) for section, _ in written.sections) == good
    with pytest.raises(NotARecord):
        check_record(record)


@pytest.mark.parametrize(
    "change",
    [{"runs": 5}, {"runs": None}, {"runs": [5]}, {"view": []}, {"about": 3}, {"suite": None}],
    ids=repr,
)
def test_a_list_of_runs_that_is_none_is_left_out(
    folder: Path,
    change: dict[str, Any],
) -> None:
    listed = {"suite": "odd", "about": "", "view": "main", "runs": []}
    (folder / "odd.suite.json").write_text(json.dumps(listed | change))
    [complaint] = write_report(folder).complaints
    assert "odd.suite.json left out: not a list of runs" in complaint


def test_json_without_end_is_not_readable(folder: Path) -> None:
    (folder / "deep.json").write_text("[" * 100_000)
    [complaint] = write_report(folder).complaints
    assert "deep.json left out: not readable JSON" in complaint


def test_half_a_character_in_a_name_is_spelled_out(folder: Path) -> None:
    record = record_of(spec("ewc"), matrix(0.1, 0.2, 0.3)) | {"tasks": ["caf\udce9", "b", "c"]}
    (folder / f"{spec('ewc').digest()}.json").write_text(json.dumps(record))
    assert write_report(folder).complaints == []
    assert "caf\\udce9" in (folder / "report.html").read_text()
