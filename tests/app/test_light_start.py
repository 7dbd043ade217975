"""What the package needs: no torch before a name asks for it, no extra for the everyday commands."""

import os
import subprocess
import sys

import pytest

from holdfast import Learner, settings
from holdfast.app import terminal
from holdfast.errors import HoldfastError, require
from holdfast.storage.generations import Store

EXTRAS = ["datasets", "gguf", "hassil", "home_assistant_intents", "jinja2", "ray", "sklearn"]
HEAVY = {"torch", "transformers", "accelerate", "scipy", "numpy"}

# A process in which the packages of all extras are absent.
BARE = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS} else super().find_spec(name, path, target)

sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
from holdfast.app.main import main
main()
"""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, env=environment
    )


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_imports_torch_only_when_a_name_needs_it() -> None:
    assert not HEAVY & modules_after(
        "import holdfast; dir(holdfast); holdfast.Settings; holdfast.HoldfastError"
    )
    assert "torch" in modules_after("import holdfast; holdfast.METHODS")


def test_help_imports_nothing_heavy() -> None:
    code = "from holdfast.app.main import app\nfrom typer.testing import CliRunner\n"
    code += "assert CliRunner().invoke(app, ['--help']).exit_code == 0"
    assert not HEAVY & modules_after(code)


def test_rollback_and_verify_import_nothing_heavy(one_layer: str, tmp_path) -> None:
    learner = Learner.create(one_layer)
    for text in ("music0", "music1"):
        learner.learn([text], ["music"])
        learner.save(tmp_path / "state")
    for command in (["rollback", str(tmp_path / "state"), "1"], ["verify", str(tmp_path / "state")]):
        code = f"from holdfast.app.main import app\napp({command!r}, standalone_mode=False)"
        assert not HEAVY & modules_after(code)
    assert Store(tmp_path / "state").current == 1


@pytest.mark.slow
def test_everyday_commands_work_without_extras(tiny_bert: str, tmp_path) -> None:
    rows = [f"music{i % 3} the,music\nlight{i % 3} a,light" for i in range(12)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    state, rows = str(tmp_path / "state"), str(tmp_path / "rows.csv")
    for arguments in (
        ("learn", state, rows, "--model", tiny_bert),
        ("predict", state, "music1"),
        ("eval", state, rows),
        ("inspect", state),
    ):
        done = bare(*arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("data", "show", "home"), "bench"),
        pytest.param(("data", "show", "hf:owner/name"), "datasets", marks=pytest.mark.slow),
        pytest.param(("bench", "quick", "--engine", "ray", "--out", "runs"), "ray", marks=pytest.mark.slow),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(arguments: tuple[str, ...], extra: str, tmp_path) -> None:
    done = bare(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"pip install 'holdfast[{extra}]'" in line


def test_require_hides_no_other_error() -> None:
    assert require("json", "none") is __import__("json")
    with pytest.raises(HoldfastError, match=r"package nosuch; .* 'holdfast\[some\]'"):
        require("nosuch.module", "some")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "nonsense"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_usable_cpus_follow_the_limit_of_a_container(files, expected, tmp_path, monkeypatch) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(settings, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert settings.usable_cpus() == expected


@pytest.mark.parametrize(("variable", "expected"), [("3", 3), ("", 7), ("0", 7), ("many", 7), (None, 7)])
def test_threads_follow_omp_num_threads(variable, expected, monkeypatch) -> None:
    monkeypatch.setattr(terminal, "usable_cpus", lambda: 7)
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert terminal.default_threads() == expected
