"""Damage to stored files is noticed: every flipped bit, in every file of a state and of an importance."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import environment

from holdfast.errors import HoldfastError
from holdfast.lm.artefact import Card, Importance, read_card
from holdfast.storage.files import make_directory, parse_json, read_json, write_bytes
from holdfast.storage.generations import Store
from holdfast.storage.scratch import Scratch, sweep
from holdfast.storage.tensors import read_tensors, write_tensors

TENSORS = {"weights": {"a": torch.arange(12.0).reshape(3, 4)}, "head.slda": {"counts": torch.ones(3)}}
SECTIONS = {"learner": {"labels": ["alarm", "music"]}, "history": [{"task": "week 1", "score": 0.5}]}


def content(store: Store) -> Any:
    found = store.load()
    values = {f"{g}/{n}": t.tolist() for g, params in found.tensors.items() for n, t in params.items()}
    return found.number, found.sections, values


def flips(path: Path, number: int, seed: int) -> list[tuple[int, int]]:
    """Return places and bits, spread over the whole file."""
    rng, size = random.Random(seed), path.stat().st_size
    return [(rng.randrange(size), 1 << rng.randrange(8)) for _ in range(number)]


def undetected(path: Path, read: Callable[[], Any], number: int) -> list[tuple[int, int]]:
    """Return the flipped bits of a file after which `read` returns something else without an error."""
    whole, expected, wrong = path.read_bytes(), read(), []
    for place, bit in flips(path, number, seed=len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            if read() != expected:
                wrong.append((place, bit))
        except HoldfastError:
            pass
    path.write_bytes(whole)
    return wrong


@pytest.mark.parametrize(
    "file", ["generation-000002/state.safetensors", "generation-000002/manifest.json", "CURRENT"]
)
def test_a_flipped_bit_in_a_state_is_noticed(file: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        store.commit(TENSORS, SECTIONS)
    assert not undetected(tmp_path / file, lambda: content(store), 200)


def test_a_flipped_bit_in_an_importance_is_noticed(tmp_path: Path) -> None:
    importance = Importance({"w": torch.rand(8, 8)}, Card(model="mine", data="code", sequences=60))
    importance.save(tmp_path)

    def read() -> Any:
        found = Importance.load(tmp_path)
        return found.card, found.values["w"].tolist()

    assert not undetected(tmp_path / "importance.safetensors", read, 200)


def test_a_damaged_generation_is_named_and_a_whole_one_offered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(4):
        store.commit(TENSORS, SECTIONS)
    for number in (3, 4):
        file = store.path(number) / "state.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(HoldfastError, match=rf"generation 4 is damaged: .* holdfast rollback {tmp_path} 2$"):
        store.load()
    assert [bool(wrong) for wrong in store.verify().values()] == [False, False, True, True]


@pytest.mark.parametrize(
    "values",
    [{"w": torch.tensor([-1.0, 2.0])}, {"w": torch.zeros(3)}, {"w": torch.tensor([1])}, {}],
    ids=["negative", "zero", "integers", "empty"],
)
def test_an_importance_that_cannot_be_is_refused(values: dict[str, torch.Tensor], tmp_path: Path) -> None:
    Importance(values, Card(model="mine", data="code", sequences=60)).save(tmp_path)
    with pytest.raises(HoldfastError):
        Importance.load(tmp_path)


@pytest.mark.parametrize("change", [{"zeal": 1}, {"sequences": "many"}, {"kind": "hearsay"}, {"model": None}])
def test_a_card_with_unknown_or_wrong_fields_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    card = {
        "model": "mine",
        "data": "code",
        "sequences": 60,
        "kind": "mas",
        "squared": False,
        "fingerprint": "",
    }
    write_tensors(tmp_path / "importance.safetensors", {"importance": {"w": torch.ones(2)}}, card | change)
    with pytest.raises(HoldfastError, match="damaged"):
        Importance.load(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b'{"a": "\\ud800"}', b"\xff", b"[" * 100_000, b"{", b""],
    ids=["surrogate", "bytes", "deep", "open", "empty"],
)
def test_json_that_would_fail_later_is_refused_at_once(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="not readable JSON"):
        parse_json(data, tmp_path)
    (tmp_path / "x.json").write_bytes(data)
    if b"ud800" in data:
        return  # a record may contain one, and reports spell it out
    with pytest.raises(HoldfastError, match="not readable JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "file", ["generation-000001/state.safetensors", "generation-000001/manifest.json", "CURRENT"]
)
def test_a_pipe_or_an_immense_file_is_refused_at_once(file: str, tmp_path: Path) -> None:
    """Reading a pipe waits for ever, and reading a sparse file of 200 GB takes 200 GB of memory."""
    store = Store(tmp_path)
    store.commit(TENSORS, SECTIONS)
    path = tmp_path / file
    os.truncate(path, 200 * 2**30)
    with pytest.raises(HoldfastError):
        store.load()
    path.unlink()
    os.mkfifo(path)
    for read in (store.load, store.verify):
        with pytest.raises(HoldfastError, match="is neither a file nor a directory"):
            read()


def test_an_importance_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "importance.safetensors")
    for read in (Importance.load, read_card):
        with pytest.raises(HoldfastError, match="is not a regular file"):
            read(tmp_path)


def test_tensors_stay_what_they_are_when_their_file_changes(tmp_path: Path) -> None:
    """A mapped file that is cut short kills the process with SIGBUS."""
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"weights": {"a": torch.ones(1_000_000)}}, {})
    script = (
        "import sys, os\nfrom pathlib import Path\nfrom holdfast.storage.tensors import read_tensors\n"
        "tensors, _ = read_tensors(Path(sys.argv[1]))\nos.truncate(sys.argv[1], 10)\n"
        "assert float(tensors['weights']['a'].sum()) == 1_000_000\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=environment())
    assert done.returncode == 0


def test_a_state_is_private(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "state")
    store.commit(TENSORS, SECTIONS)
    for path in (store.root, *store.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_parents_of_a_new_directory_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], os.fsync

    def spy(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    make_directory(tmp_path / "a" / "b")
    write_bytes(tmp_path / "a" / "b" / "c" / "file", b"x")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(synced)


# ---- temporary directories ----------------------------------------------------------------------------


def test_temporary_directories_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = (
        "import os, signal\nfrom holdfast.storage.scratch import Scratch\nkept = Scratch()\n"
        "(kept.path / 'x.trial').write_text('sums')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment() | {"TMPDIR": str(tmp_path)})
    assert [path.name for path in tmp_path.glob("holdfast-*/*.trial")] == ["x.trial"]
    (tmp_path / "holdfast-mine").mkdir()  # without a lock, it is somebody else's
    mine = Scratch()
    assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, "holdfast-mine"}
    sweep()
    assert mine.path.is_dir(), "one that is in use stays"
    path = mine.path
    del mine
    assert not path.exists()


def test_a_damaged_trial_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "x.trial"
    write_tensors(path, TENSORS, {"score": 0.5})
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(HoldfastError, match="has changed since it was written"):
        read_tensors(path)
