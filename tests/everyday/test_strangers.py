"""States from strangers, and states that two people change at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.command_line import call, refused
from helpers.everyday import rows_of, table
from helpers.learners import STREAM, taught

from holdfast import Learner
from holdfast.errors import HoldfastError
from holdfast.storage.generations import Store

# ---- links --------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a folder outside of the state, with a file of the user in it."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", [".lock", "CURRENT", "README.md", "generation-000001/state.safetensors"])
def test_no_command_goes_through_a_link_to_a_file(name, mine, victim, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    (mine / name).unlink(missing_ok=True)
    (mine / name).symlink_to(victim / "precious")
    for command in (
        ("rollback", str(mine), "1"),
        ("learn", str(mine), more),
        ("forget-label", str(mine), "music"),
    ):
        refused(capsys, "is a link to", *command)
    with pytest.raises(HoldfastError, match="is a link to"):
        Learner.load(mine)
    assert contents(victim) == {"precious": "mine"}


@pytest.mark.parametrize("name", [".trials", "generation-000002", "generation-000099"])
def test_no_command_goes_through_a_link_to_a_folder(name, mine, victim, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    shutil.rmtree(mine / name, ignore_errors=True)
    (mine / name).symlink_to(victim, target_is_directory=True)
    refused(capsys, "is a link to", "learn", str(mine), more)
    refused(capsys, "is a link to", "predict", str(mine), "music0")
    assert contents(victim) == {"precious": "mine"}


def test_a_state_may_be_reached_through_a_link(mine, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(mine, target_is_directory=True)
    assert Learner.load(link).classes_ == Learner.load(mine).classes_
    assert call("learn", str(link), table(tmp_path / "more.csv", rows_of(2)), "--budget", "0") == 0


# ---- two writers --------------------------------------------------------------------------------------


def test_the_second_of_two_saves_is_refused(one_layer, tmp_path):
    state = tmp_path / "state"
    taught(one_layer, tasks=1).save(state)
    first, second = Learner.load(state), Learner.load(state)
    first.learn(STREAM.tasks[1])
    second.learn(STREAM.tasks[2])
    assert first.save(state) == 2
    with pytest.raises(
        HoldfastError, match=r"generation 2, but .* generation 1 of .*Learner.merge.*force=True"
    ):
        second.save(state)
    assert Learner.load(state).classes_ == first.classes_
    assert second.save(state, force=True) == 3
    assert Learner.load(state).classes_ == second.classes_
    second.learn(STREAM.tasks[1])
    assert second.save(state) == 4, "it goes on from what it has saved"


def test_a_new_learner_does_not_replace_an_old_one(one_layer, tmp_path):
    taught(one_layer, tasks=2).save(tmp_path)
    with pytest.raises(HoldfastError, match="generation 1, but this learner comes from a new learner"):
        taught(one_layer, tasks=1).save(tmp_path)
    assert Store(tmp_path).generations == [1]


def test_an_earlier_generation_is_saved_over_a_later_one_only_by_force(one_layer, tmp_path):
    learner = taught(one_layer, tasks=1)
    learner.save(tmp_path)
    learner.learn(STREAM.tasks[1])
    learner.save(tmp_path)
    earlier = Learner.load(tmp_path, generation=1)
    with pytest.raises(HoldfastError, match="is at generation 2"):
        earlier.save(tmp_path)
    Store(tmp_path).rollback(1)
    assert earlier.save(tmp_path) == 3, "after a rollback it is the current one"


def test_a_learner_is_saved_elsewhere_as_it_is(one_layer, tmp_path):
    learner = taught(one_layer, tasks=1)
    assert [learner.save(tmp_path / name) for name in ("a", "b")] == [1, 1]
