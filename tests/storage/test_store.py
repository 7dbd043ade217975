"""State on disk: complete or absent, whenever a process dies."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.errors import HoldfastError
from holdfast.maths.params import Params
from holdfast.storage import files
from holdfast.storage import generations as store
from holdfast.storage import tensors as tensor_files
from holdfast.storage.files import locked, read_json, write_bytes, write_json
from holdfast.storage.generations import Store
from holdfast.storage.tensors import read_meta, read_tensors, write_tensors

ROOT = Path(__file__).parents[2]


def python(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    """Run code in a new process with `store`, `Path`, `os`, `sys` and `torch` imported."""
    head = "import os, sys, torch\nfrom pathlib import Path\n"
    head += "from holdfast.storage import files, generations as store\n"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, args)],
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        **options,
    )


def one_line(error: pytest.ExceptionInfo[HoldfastError]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def state(value: float) -> dict[str, Params]:
    return {"weights": {"a.b": torch.full((2, 3), value)}, "importance": {}}


# ---- one file ----------------------------------------------------------------------------------------


def full_disk(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class HalfWritten:
    """A file that writes half of its data and then fails with a full disk."""

    def __init__(self, path: int, mode: str) -> None:
        self.file = os.fdopen(path, mode)

    def __enter__(self) -> "HalfWritten":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def fileno(self) -> int:
        return self.file.fileno()

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        full_disk()


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"old": True})
    if broken == "write":
        monkeypatch.setattr(files, "open", HalfWritten, raising=False)
    else:
        monkeypatch.setattr(store.os, broken, full_disk)
    with pytest.raises(HoldfastError, match=r"record\.json: No space left") as error:
        write_bytes(path, b"new" * 1000)
    one_line(error)
    monkeypatch.undo()
    assert read_json(path) == {"old": True}
    assert os.listdir(tmp_path) == ["record.json"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "x", b"new")
    assert os.listdir(tmp_path) == []


def test_bytes_and_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in (b"", b"\0\xff" * 10):
        write_bytes(path, data)
        assert path.read_bytes() == data
    write_json(path, {"ü": [1, None, 0.1]})
    assert read_json(path) == {"ü": [1, None, 0.1]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))  # NaN is not valid JSON
    assert read_json(path) == {"ü": [1, None, 0.1]}


def test_json_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content in (b"", b'{"a": 1', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(HoldfastError, match=r"r\.json is not readable JSON") as error:
            read_json(path)
        one_line(error)


def test_tensors_round_trip_bit_for_bit_with_empty_groups_and_every_shape(tmp_path: Path) -> None:
    tensors = {
        "weights": {
            "deep/name.with.dots": torch.randn(3, 5).T,  # not contiguous
            "double": torch.tensor([0.1], dtype=torch.float64),
            "half": torch.tensor([0.1], dtype=torch.bfloat16),
            "scalar": torch.tensor(3.0),
            "no rows": torch.empty(0, 4),
        },
        "importance": {},
    }
    meta = {"labels": ["a/b", "ü"], "numbers": {"tasks": 2, "x": 1e-10}, "none": None}
    path = tmp_path / "t.safetensors"
    write_tensors(path, tensors, meta)
    back, read = read_tensors(path)
    assert read == read_meta(path) == meta
    assert back.keys() == tensors.keys()
    assert back["importance"] == {}
    assert back["weights"].keys() == tensors["weights"].keys()
    for name, value in tensors["weights"].items():
        assert back["weights"][name].dtype == value.dtype
        assert torch.equal(back["weights"][name], value)


def test_a_truncated_or_foreign_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, state(1.0), {})
    whole = path.read_bytes()
    foreign = tensor_files.save({"x": torch.ones(1)})
    for content in (b"", whole[:4], whole[:20], whole[: len(whole) // 2], whole[:-1], b"\xff" * 99, foreign):
        path.write_bytes(content)
        for read in (read_tensors, read_meta) if len(content) < 100 else (read_tensors,):
            with pytest.raises(HoldfastError, match="not a readable Holdfast state") as error:
                read(path)
            assert str(path) in one_line(error)
    with pytest.raises(HoldfastError, match="not a readable"):
        read_tensors(tmp_path / "missing")


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    monkeypatch.setattr(tensor_files, "FORMAT", 3)
    monkeypatch.setattr(store, "FORMAT", 3)
    write_tensors(path, state(1.0), {})
    Store(tmp_path / "state").commit(state(1.0), {})
    monkeypatch.undo()
    for read in (lambda: read_tensors(path), Store(tmp_path / "state").load):
        with pytest.raises(HoldfastError, match=r"newer Holdfast \(format 3\)") as error:
            read()
    one_line(error)


# ---- generations -------------------------------------------------------------------------------------


def test_generations(tmp_path: Path) -> None:
    it = Store(tmp_path / "new" / "place")
    assert it.current is None
    with pytest.raises(HoldfastError, match="holds no Holdfast state") as error:
        it.load()
    one_line(error)
    for n in (1, 2, 3):
        assert it.commit(state(n), {"n": n}) == it.current == n
        found = Store(it.root).load()
        tensors, meta = found.tensors, found.sections
        assert (found.number, found.format, meta) == (n, 2, {"n": n})
        assert tensors["importance"] == {}
        assert torch.equal(tensors["weights"]["a.b"], torch.full((2, 3), float(n)))
    assert it.load(2).sections == {"n": 2}
    with pytest.raises(HoldfastError, match="no generation 9; there are 1, 2, 3"):
        it.load(9)


@pytest.mark.parametrize("broken", ["write_bytes", "replace"])
def test_a_commit_that_fails_leaves_the_old_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    it = Store(tmp_path)
    it.commit(state(1), {"n": 1})
    before = sorted(os.listdir(tmp_path))
    if broken == "replace":
        monkeypatch.setattr(store.os, "replace", full_disk)
    else:
        monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(HoldfastError, match="No space left"):
        it.commit(state(2), {"n": 2})
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == before
    assert it.load().sections == {"n": 1}
    assert it.commit(state(2), {"n": 2}) == 2


DIE_BEFORE_THE_POINTER = """
real = store.write_bytes
def dying(path, data, **options):
    if path.name == "CURRENT":
        os._exit(9)
    real(path, data, **options)
store.write_bytes = dying
store.Store(Path(sys.argv[1])).commit({"weights": {"a.b": torch.full((2, 3), 66.0)}}, {"n": "lost"})
"""


def test_killed_between_the_generation_and_the_pointer(tmp_path: Path) -> None:
    it = Store(tmp_path)
    it.commit(state(1), {"n": 1})
    process = python(DIE_BEFORE_THE_POINTER, tmp_path)
    process.communicate(timeout=120)
    assert process.returncode == 9
    assert (tmp_path / "generation-000002").is_dir()  # the process died in between
    assert it.current == 1
    assert it.load().sections == {"n": 1}
    assert it.commit(state(2), {"n": 2}) == 2
    assert it.load().sections == {"n": 2}
    assert torch.equal(it.load().tensors["weights"]["a.b"], torch.full((2, 3), 2.0))


# ---- the lock ----------------------------------------------------------------------------------------


def test_the_lock_keeps_a_second_process_out_until_the_first_is_dead(tmp_path: Path) -> None:
    holder = python(
        "with files.locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()", tmp_path
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HoldfastError, match="another process") as error, locked(tmp_path):
            pytest.fail("two processes hold the lock")
        assert str(tmp_path) in one_line(error)
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=60)
        with locked(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()


def test_the_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path), pytest.raises(HoldfastError, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_generation_that_was_gone_back_to_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=3)
    for number in range(3):
        store.commit({"weights": {}}, {"n": number})
    store.rollback(1)
    store.commit({"weights": {}}, {"n": "of 1"})
    assert store.generations == [1, 3, 4]
    assert [store.sections(number).sections["n"] for number in store.generations] == [0, 2, "of 1"]
    store.commit({"weights": {}}, {"n": "of 4"})
    assert store.generations == [3, 4, 5]


def test_a_damaged_generation_says_where_to_go_back_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(2):
        store.commit({"weights": {}}, {"n": number})
    (store.path(2) / "state.safetensors").write_bytes(b"")
    with pytest.raises(HoldfastError, match=r"or go back: holdfast rollback .* 1$"):
        store.load()
    (tmp_path / "CURRENT").write_text('{"current": 1e400, "generations": [1]}')
    with pytest.raises(HoldfastError, match="is damaged"):
        store.load()


@pytest.mark.parametrize("lock", [locked, files.shared])
def test_a_lock_that_is_a_link_touches_nothing(lock, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = tmp_path / "state"
    state.mkdir()
    for name in (".lock", ".users"):
        (state / name).symlink_to(victim)
    with pytest.raises(HoldfastError, match=r"cannot write to .*symbolic link"), lock(state):
        pass
    assert victim.read_text() == "precious"


def test_a_lock_empties_no_file(tmp_path):
    (tmp_path / ".lock").write_text("somebody else's")
    with locked(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == "somebody else's"
