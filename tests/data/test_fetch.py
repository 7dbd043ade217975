"""Downloads: complete and verified, or a one-line error and nothing on disk."""

import hashlib
import os
from pathlib import Path

import pytest
from helpers.web import serving

from holdfast.data import load_stream
from holdfast.data.fetch import BASE_URL, SOURCES, _checksums, fetch
from holdfast.errors import HoldfastError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the paper's data is not beside the repository")
needs_clinc = pytest.mark.skipif(
    not (DATA / "clinc150").is_dir(), reason="CLINC150 is not beside the repository"
)
RAW, CLINC = "annomi_raw/AnnoMI-simple.csv", "clinc150/data_small.json"


def shared_file(path: str) -> bytes | None:
    """Answer requests to the public address from the shared copy."""
    for folder, source in SOURCES.values():
        if path.startswith(f"/{source}/"):
            file = DATA / folder / path.removeprefix(f"/{source}/")
            return file.read_bytes() if file.is_file() else None
    return None


def left_behind(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def test_the_sources_are_public_and_pinned() -> None:
    assert BASE_URL == "https://raw.githubusercontent.com"
    for _, source in SOURCES.values():
        commit = source.split("/")[2]
        assert len(commit) == 40
        assert set(commit) <= set("0123456789abcdef")


@needs_data
def test_our_checksums_are_those_of_the_sources() -> None:
    listed = {checksum for checksum, _ in map(str.split, (DATA / "SHA256SUMS").read_text().splitlines())}
    lines = [line.split() for line in (DATA / "SOURCES.md").read_text().splitlines()]
    others = {
        checksum for checksum, path in (line for line in lines if len(line) == 2) if path in (RAW, CLINC)
    }
    assert len(others) == 2
    assert set(_checksums().values()) == listed | others
    for path, checksum in _checksums().items():
        assert hashlib.sha256((DATA / path).read_bytes()).hexdigest() == checksum


@needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [("hwu64", 36), ("annomi", 18), ("annomi-raw", 1), pytest.param("clinc150", 1, marks=needs_clinc)],
)
def test_what_is_fetched_loads(tmp_path: Path, name: str, count: int) -> None:
    told: list[tuple[Path, int, int]] = []
    with serving(shared_file) as (url, asked):
        paths = fetch(name, tmp_path, base_url=url, progress=lambda *news: told.append(news))
    assert told == [(path, done, count) for done, path in enumerate(paths, start=1)]
    assert asked == [f"/{SOURCES[name][1]}/{path.relative_to(tmp_path / SOURCES[name][0])}" for path in paths]
    assert load_stream(name, data_dir=tmp_path) == load_stream(name, data_dir=DATA)
    assert {path for path in left_behind(tmp_path) if path.is_file()} == set(paths)


@needs_data
def test_only_what_is_missing_or_wrong_is_asked_for(tmp_path: Path) -> None:
    with serving(shared_file) as (url, asked):
        first, second, *_ = fetch("annomi", tmp_path, base_url=url)
        first.unlink()
        second.write_text("{}")
        asked.clear()
        fetch("annomi", tmp_path, base_url=url)
    assert len(asked) == 2
    assert second.read_bytes() == (DATA / second.relative_to(tmp_path)).read_bytes()
    fetch("annomi", tmp_path, base_url=url)  # the server is gone, but not needed


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path) -> None:
    with serving(lambda _: b"someone else's data") as (url, _), pytest.raises(HoldfastError) as error:
        fetch("annomi-raw", tmp_path, base_url=url)
    found = hashlib.sha256(b"someone else's data").hexdigest()
    address = f"{url}/{SOURCES['annomi-raw'][1]}/AnnoMI-simple.csv"
    assert str(error.value) == (
        f"{address}: wrong checksum, {found[:12]}... instead of b178db3b0b98...; nothing was kept, try again"
    )
    assert left_behind(tmp_path) == []


def test_a_wrong_answer_does_not_touch_the_file_that_was_there(tmp_path: Path) -> None:
    old = tmp_path / RAW
    old.parent.mkdir()
    old.write_text("edited by hand")
    with serving(lambda _: b"x") as (url, _), pytest.raises(HoldfastError, match="wrong checksum"):
        fetch("annomi-raw", tmp_path, base_url=url)
    assert old.read_text() == "edited by hand"


def test_a_truncated_answer_leaves_nothing(tmp_path: Path) -> None:
    with serving(lambda _: b"x" * 100, cut=40) as (url, _), pytest.raises(HoldfastError) as error:
        fetch("hwu64", tmp_path, base_url=url)
    assert "download failed (IncompleteRead(60 bytes read, 40 more expected))" in str(error.value)
    assert left_behind(tmp_path) == []


def test_a_missing_page_and_an_unreachable_server(tmp_path: Path) -> None:
    with serving(lambda _: None) as (url, _), pytest.raises(HoldfastError, match=r"failed \(HTTP Error 404"):
        fetch("hwu64", tmp_path, base_url=url)
    with pytest.raises(HoldfastError, match=r"failed \(.*refused.*\); check the network and try again$"):
        fetch("hwu64", tmp_path, base_url=url)
    assert left_behind(tmp_path) == []


@needs_data
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with serving(shared_file) as (url, _), pytest.raises(HoldfastError) as error:
        fetch("annomi-raw", tmp_path, base_url=url)
    assert str(error.value) == f"cannot write {tmp_path / RAW}: No space left on device"
    assert [path for path in left_behind(tmp_path) if path.is_file()] == []


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as error:
        fetch("hwu46", tmp_path)
    assert str(error.value) == (
        "nothing to download for 'hwu46' (did you mean 'hwu64'?); choose from hwu64, annomi, annomi-raw,"
        " clinc150"
    )
