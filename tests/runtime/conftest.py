"""A learner and its artefacts; nobody may change them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.artefacts import exported, state_of


@pytest.fixture(scope="package")
def learnt(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a learner with the method `auto`."""
    return state_of(tiny_bert, tmp_path_factory.mktemp("learnt") / "state")


@pytest.fixture(scope="package")
def artefact(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its artefact of one graph."""
    return exported(learnt, tmp_path_factory.mktemp("artefact") / "one", onnx=True)


@pytest.fixture(scope="package")
def tenants(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three artefacts that share an encoder: one of the first generation, two of the second."""
    place = tmp_path_factory.mktemp("tenants")
    for name in ("a", "b", "c"):
        exported(learnt, place / name, onnx=True, share=True)
    return place
