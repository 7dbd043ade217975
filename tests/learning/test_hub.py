"""Learners are shared as folders, and through the hub's own client with a hub on this machine."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hub import local_hub
from helpers.learners import STREAM, TEXTS, taught
from helpers.paths import ROOT

from holdfast import Learner
from holdfast.errors import HoldfastError
from holdfast.learning import hub as sharing
from holdfast.storage.generations import Store


def test_a_copy_to_share_answers_the_same_and_names_no_rows(one_layer, tmp_path):
    learner = taught(one_layer)
    learner.save(tmp_path / "mine")
    learner.history[0]["id"] = "ab12"
    learner.save(tmp_path / "mine")
    learner.save_pretrained(tmp_path / "shared")
    assert learner.generation == 2, "the learner still belongs to its own directory"
    learner.save(tmp_path / "mine")
    other = Learner.from_pretrained(tmp_path / "shared")
    assert other.predict(TEXTS) == learner.predict(TEXTS)
    assert Store(tmp_path / "shared").generations == [1]
    assert not any(entry.get("id") for entry in other.history)
    assert other.key != learner.key
    other.learn(STREAM.tasks[2].train.texts, STREAM.tasks[2].train.labels)
    other.save(tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "library_name: holdfast" in card
    learner.save_pretrained(tmp_path / "again")
    assert 'Learner.from_pretrained("<this folder>")' in (tmp_path / "again" / "README.md").read_text()


def test_what_cannot_be_shared_is_one_line(one_layer, tmp_path):
    learner = taught(one_layer, tasks=1)
    with pytest.raises(HoldfastError, match="encoder='owner/name'"):
        learner.push_to_hub("me/intents")
    learner.save(tmp_path / "mine")
    with pytest.raises(HoldfastError, match="already holds a learner"):
        learner.save_pretrained(tmp_path / "mine")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HoldfastError, match="contains other files"):
        learner.save_pretrained(tmp_path)
    with pytest.raises(HoldfastError, match="no revisions"):
        Learner.from_pretrained(tmp_path, revision="main")


def test_a_named_encoder_leaves_no_path_of_this_machine(one_layer, tmp_path):
    learner = taught(one_layer, tasks=1)
    learner.save_pretrained(tmp_path / "shared", encoder="owner/tiny")
    section = Store(tmp_path / "shared").sections().sections["encoder"]
    assert (section["name"], section["folder"]) == ("owner/tiny", None)
    written = [p.read_bytes() for p in (tmp_path / "shared").rglob("*") if p.is_file()]
    assert not any(Path(one_layer).name.encode() + b"/" in data for data in written)
    assert not any(str(Path(one_layer).parent).encode() in data for data in written)
    other = Learner.from_pretrained(tmp_path / "shared", model=one_layer)
    assert other.predict(TEXTS) == learner.predict(TEXTS)


SCRIPT = """
import json, sys
import huggingface_hub
from holdfast import HoldfastError, Learner

state, encoder, out = sys.argv[1:]
learner, said = Learner.load(state), {}

def trying(name, do):
    try:
        said[name] = do()
    except HoldfastError as error:
        said[name] = str(error)

texts = json.load(open("texts.json"))
first = learner.push_to_hub("me/intents", encoder="owner/tiny", token="hf_right")
learner.learn(["a new sentence", "another new one"], ["new", "new"])
second = learner.push_to_hub("me/intents", encoder="owner/tiny", token="hf_right", message="More")
newest = Learner.from_pretrained("me/intents", model=encoder)
older = Learner.from_pretrained("me/intents", revision=first, model=encoder)
said["shas"] = [first, second]
said["classes"] = [newest.classes_, older.classes_, learner.classes_]
said["same"] = newest.predict(texts) == learner.predict(texts)
said["generation"] = newest.generation
newest.save(out)
trying("token", lambda: learner.push_to_hub("me/intents", encoder="o/t", token="hf_wrong"))
trying("absent", lambda: Learner.from_pretrained("me/nothing"))
trying("revision", lambda: Learner.from_pretrained("me/intents", revision="0" * 40))
trying("name", lambda: Learner.from_pretrained("not a name!"))
trying("empty", lambda: Learner.from_pretrained("me/empty"))
trying("damaged", lambda: Learner.from_pretrained("me/damaged", model=encoder))
trying("moving", lambda: Learner.from_pretrained("me/moving", model=encoder).classes_)
trying("nested", lambda: Learner.from_pretrained("me/nested", model=encoder).classes_)
huggingface_hub.constants.HF_HUB_OFFLINE = True
trying("offline", lambda: Learner.from_pretrained("me/intents", model=encoder).classes_)
trying("uncached", lambda: Learner.from_pretrained("me/other", model=encoder))
print(json.dumps(said))
"""


@pytest.mark.slow  # starts the hub's own client several times
def test_push_and_fetch_with_the_client_of_the_hub(one_layer, tmp_path):
    taught(one_layer, tasks=1).save(tmp_path / "mine")
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    shutil.copytree(tmp_path / "mine", tmp_path / "bad")
    with local_hub() as hub:
        generation = next((tmp_path / "bad").glob("generation-*"))
        files = {
            "CURRENT": (tmp_path / "bad" / "CURRENT").read_bytes(),
            f"{generation.name}/manifest.json": (generation / "manifest.json").read_bytes(),
            f"{generation.name}/state.safetensors": (generation / "state.safetensors").read_bytes()[:-1]
            + b"x",
            "evil.py": b"raise SystemExit(3)",
        }
        good = {name: (tmp_path / "mine" / name).read_bytes() for name in files if name != "evil.py"}
        nested = good | {f"{generation.name}/deep/er/state.safetensors": b"of any size"}
        repos = {"me/damaged": files, "me/empty": {"README.md": b"nothing"}, "me/nested": nested}
        repos["me/moving"], hub.next["me/moving"] = good, files
        for repo, content in repos.items():
            hub.commits[repo] = []
            hub.commit(repo, content)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "mine"), one_layer, str(tmp_path / "out")],
            cwd=tmp_path, capture_output=True, text=True, timeout=200,
            env=os.environ | {
                "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"),
                "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + "\n".join(hub.asked)
        said = json.loads(done.stdout.splitlines()[-1])
        pushed = hub.commits["me/intents"]
        assert said["shas"] == [pushed[1][0], pushed[2][0]]
        assert set(pushed[2][1]) == {
            "CURRENT", "README.md", "generation-000001/manifest.json", "generation-000001/state.safetensors",
        }  # fmt: skip
        card = pushed[2][1]["README.md"].decode()
        assert 'Learner.from_pretrained("me/intents")' in card
        assert "base_model: owner/tiny" in card
        assert "tags: [holdfast]" in card
        strange = [line for line in hub.asked if "evil" in line or "deep" in line]
        assert not strange, "only files whose sizes were checked are fetched"
    assert said["same"]
    newest, older, own = said["classes"]
    assert newest == own
    assert older == [label for label in own if label != "new"]
    assert said["generation"] == 0
    assert Learner.load(tmp_path / "out", model=one_layer).classes_ == own
    assert "cannot be uploaded" in said["token"]
    assert "401" in said["token"] or "Invalid" in said["token"]
    assert "me/nothing: cannot be fetched" in said["absent"]
    assert "cannot be fetched" in said["revision"]
    assert "not a name!: cannot be fetched" in said["name"]
    assert "holds no Holdfast state" in said["empty"]
    assert "is damaged" in said["damaged"]
    assert said["offline"] == own
    assert said["nested"] == older
    assert said["moving"] == older, "the commit whose sizes were checked is the one that is fetched"
    assert "me/other: cannot be fetched" in said["uncached"]
    for text in (
        said[name] for name in ("uncached", "token", "absent", "revision", "name", "empty", "damaged")
    ):
        assert len(text.splitlines()) == 1, text


def test_only_files_of_a_state_are_named_so():
    fits = sharing.OURS.fullmatch
    assert fits("CURRENT")
    assert fits("generation-000012/state.safetensors")
    assert not fits("../CURRENT")
    assert not fits("generation-000012/../x/manifest.json")
    assert not fits("generation-1/manifest.json")


def test_a_learner_is_described_in_one_line(one_layer):
    learner = taught(one_layer)
    assert repr(learner) == f"Learner(slda, {Path(one_layer).name}, 4 labels, 2 lessons)"


def test_notes_are_logged_where_nobody_else_listens(one_layer, caplog, capsys):
    with caplog.at_level(logging.INFO, "holdfast"):
        taught(one_layer, tasks=1).progress.note("note: something")
    assert caplog.messages == ["note: something"]
    assert capsys.readouterr() == ("", "")
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger("holdfast").handlers)
