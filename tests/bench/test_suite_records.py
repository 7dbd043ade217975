"""Records of a suite when data changes, other processes interfere or a kill leaves files behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.runs import SETTINGS
from helpers.suites import Quiet, Scripted, records
from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench import Spec
from holdfast.bench.bench import bench
from holdfast.bench.engine import Local
from holdfast.bench.run import run
from holdfast.bench.suite import Suite
from holdfast.storage.files import shared


def test_files_edited_while_a_suite_runs_fail_one_run_and_no_other(
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
) -> None:
    specs = tuple(
        Spec.create(method=method, stream=str(two_files), settings=SETTINGS, model=one_layer)
        for method in ("seq", "mas")
    )
    out = tmp_path / "out"
    failures = bench(Suite("s", specs), out, Scripted({"kind": "begun"}, {"kind": "done"}), Quiet)
    assert [failure.spec.method for failure in failures] == ["seq", "mas"], (
        "each failure is reported, none stops the rest"
    )
    assert all("edited during the run" in failure.why for failure in failures)


def test_what_a_suite_no_longer_names_is_not_missing(
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
) -> None:
    seq, mas, ewc = (
        Spec.create(method=method, stream=str(two_files), settings=SETTINGS, model=one_layer)
        for method in ("seq", "mas", "ewc")
    )

    def planned(*specs: Spec, narrowed: bool = False) -> set[str]:
        bench(
            Suite("s", specs, narrowed=narrowed),
            tmp_path,
            Scripted({"kind": "begun"}, {"kind": "failed", "why": "no"}),
            Quiet,
        )
        runs = json.loads((tmp_path / "s.suite.json").read_text())["runs"]
        return {run["spec"]["method"] for run in runs}

    assert planned(seq, mas, ewc) == {"seq", "mas", "ewc"}
    assert planned(seq, narrowed=True) == {"seq", "mas", "ewc"}, (
        "with --method seq the manifest keeps the other runs"
    )
    (tmp_path / f"{ewc.digest()}.json").write_text(json.dumps(record_of(ewc, matrix(0.1, 0.2, 0.3))))
    assert planned(seq) == {"seq", "ewc"}, "mas and ewc were removed from the suite, but ewc has a record"


def test_what_a_run_has_to_say_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    board = SuiteDisplay(Console(width=200), 1, 1)
    board.start([Spec.create(method="seq", stream="home")], [])
    board.event(0, {"kind": "begun"}, None)
    board.event(0, {"kind": "note", "text": "caution: forgets everything"}, None)
    assert "seq home order 1 seed 0: caution: forgets everything" in capsys.readouterr().out


def test_a_kill_at_the_very_end_leaves_nothing_for_ever(
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
) -> None:
    spec = Spec.create(method="slda", stream=str(two_files), settings=SETTINGS, model=one_layer)
    record = run(spec, tmp_path)
    left = tmp_path / ".trials" / spec.digest() / "some.trial"
    for _ in range(2):  # alone and within a suite
        left.parent.mkdir(parents=True)
        left.touch()
        assert run(spec, tmp_path) == json.loads((tmp_path / f"{spec.digest()}.json").read_text()) == record
        assert not left.exists()
        left.parent.mkdir(parents=True)
        left.touch()
        assert bench(Suite("s", (spec,)), tmp_path, Scripted(), Quiet) == []
        assert not left.exists()


def test_who_comes_while_the_last_one_clears_up_is_counted(tmp_path: Path) -> None:
    with shared(tmp_path) as first:
        assert first()
        (tmp_path / ".users").unlink()
        with shared(tmp_path) as second, shared(tmp_path) as third:
            assert not third(), "the second record exists too"
            del second


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system, with room for a few files only."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_what_did_not_fit_and_nothing_else(
    small_disk: Path,
    whole: tuple[Suite, Path],
) -> None:
    suite, expected = whole
    done, *rest = suite.specs
    kept = (expected / f"{done.digest()}.json").read_bytes()
    (small_disk / f"{done.digest()}.json").write_bytes(kept)
    failures = bench(suite, small_disk, Local(2), Quiet)
    assert {failure.spec.digest() for failure in failures} == {spec.digest() for spec in rest}
    for failure in failures:
        assert "No space left on device" in failure.why
        assert "\n" not in failure.why
    assert set(records(small_disk)) == {done.digest()}, "no partial record"
    assert (small_disk / f"{done.digest()}.json").read_bytes() == kept
    subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
    assert bench(suite, small_disk, Local(2), Quiet) == []
    assert records(small_disk) == records(expected)
