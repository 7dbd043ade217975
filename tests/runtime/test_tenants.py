"""Many artefacts in one process: by name, evicted by use, with one encoder."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from helpers.artefacts import SENTENCES, changed

from holdfast.errors import HoldfastError
from holdfast.runtime import Classifier, Tenants
from holdfast.runtime.artefact import SHARED
from holdfast.runtime.sessions import GRAPHS


@pytest.fixture
def mine(tenants: Path, tmp_path: Path) -> Path:
    shutil.copytree(tenants, tmp_path / "tenants")
    return tmp_path / "tenants"


def test_names_are_those_of_the_artefacts(mine: Path) -> None:
    (mine / "other").mkdir()
    (mine / "file").touch()
    shutil.copytree(mine / "a", mine / ".hidden")
    assert Tenants(mine).names == ["a", "b", "c"]
    with pytest.raises(HoldfastError, match="is no directory"):
        Tenants(mine / "nowhere").names  # noqa: B018


def test_those_used_last_stay(mine: Path) -> None:
    tenants = Tenants(mine, most=2)
    first = tenants.get("a")
    assert tenants.get("a") is first
    tenants.get("b")
    tenants.get("a")
    tenants.get("c")
    assert tenants.loaded == ["a", "c"], "b was not used for longest"
    assert tenants.get("a") is first
    gone = tenants.get("c")
    tenants.get("b")
    tenants.get("a")
    assert tenants.loaded == ["b", "a"]
    assert gone.predict(SENTENCES) == first.predict(SENTENCES), "who holds it can go on"


def test_the_limit_may_be_bytes(mine: Path) -> None:
    size = Classifier(mine / "a").own_bytes
    assert size < 100_000, "without the encoder"
    tenants = Tenants(mine, most_bytes=2 * size)
    for name in "abc":
        tenants.get(name)
    assert tenants.loaded == ["b", "c"]
    tenants = Tenants(mine, most_bytes=1)
    for name in "abc":
        assert tenants.get(name).predict(["music0"])
    assert tenants.loaded == ["c"], "the one in use always fits"


def test_all_tenants_share_the_encoder(mine: Path) -> None:
    before = len(GRAPHS)
    tenants = Tenants(mine, threads=2)
    one, other = tenants.get("a"), tenants.get("b")
    assert one._graphs[0] is other._graphs[0]
    assert one._words is other._words
    assert len(GRAPHS) - before == len(one._graphs)
    assert sorted(file.name.partition("-")[0] for file in (mine / SHARED).iterdir()) == [
        "encoder",
        *(["lift"] if len(one._graphs) == 3 else []),
        "tokenizer",
    ]


def test_an_artefact_that_has_changed_is_loaded_again(mine: Path) -> None:
    tenants = Tenants(mine)
    first = tenants.get("a")
    changed(mine / "a", generation=7)
    assert (first.generation, tenants.get("a").generation) == (1, 7)
    shutil.rmtree(mine / "a")
    with pytest.raises(HoldfastError, match="no artefact 'a'"):
        tenants.get("a")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../tenants/a", "/", "a/../b", ".hidden", "nobody", "a\n", "é"]
)
def test_a_name_is_no_path(name: str, mine: Path) -> None:
    shutil.copytree(mine / "a", mine / ".hidden")
    with pytest.raises(HoldfastError, match="there is no artefact"):
        Tenants(mine).get(name)


def test_threads_load_a_tenant_once(mine: Path) -> None:
    tenants = Tenants(mine, most=1)
    found: list[Classifier] = []
    work = [threading.Thread(target=lambda: found.append(tenants.get("a"))) for _ in range(8)]
    for one in work:
        one.start()
    for one in work:
        one.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_threads_that_evict_each_other_all_get_answers(mine: Path) -> None:
    tenants = Tenants(mine, most=1)
    expected = tenants.get("a").predict(SENTENCES[:4])
    found: list[list[str]] = []

    def work(name: str) -> None:
        for _ in range(5):
            found.append(tenants.get(name).predict(SENTENCES[:4]))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcabc"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [expected] * 30
    assert len(tenants.loaded) == 1
