"""Experiment trackers of Accelerate: off by default, a one-line error if a package is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.runs import spec, told

from holdfast.app.display import LearnerProgress
from holdfast.bench import run
from holdfast.bench.tracking import TRACKERS, Tracked, check_tracker
from holdfast.errors import HoldfastError
from holdfast.events import Progress


@pytest.mark.slow
def test_tensorboard_gets_losses_and_scores(files: Path, one_layer: str, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    asked = spec(files, one_layer, "mas", "lam=3.0")
    record = run(asked, tmp_path / "tracked", track="tensorboard")
    plain = run(asked, tmp_path / "plain")
    assert told(record) == told(plain), "tracking changes nothing"
    folders = {path.parent for path in (tmp_path / "tracked").rglob("*tfevents*")}
    logs = [reader.EventAccumulator(str(folder)).Reload() for folder in folders]
    [found] = [log for log in logs if log.Tags()["scalars"]]  # another log holds the spec
    tags = found.Tags()["scalars"]
    assert {"loss/task", "loss/valid", "loss/penalty", "valid_f1", "test_f1/1", "test_f1/3", "task"} <= set(
        tags
    )
    trainings = sum(len(lesson["trials"]) for lesson in record["trials"])
    assert len(found.Scalars("valid_f1")) == trainings
    assert found.Scalars("test_f1/3")[-1].value == pytest.approx(record["scores"]["test"][2][2])
    assert not list((tmp_path / "plain").rglob("*tfevents*"))


def test_an_unknown_or_missing_tracker_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HoldfastError, match="did you mean 'mlflow'"):
        check_tracker("mlflw")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(HoldfastError, match="pip install"):
            check_tracker(name)
    assert check_tracker(None) is None


def test_everything_is_passed_on() -> None:
    """A tracked run reports the same events as any other."""
    ours = {name for name in vars(Progress) if not name.startswith("_")}
    assert ours <= vars(Tracked).keys()
    assert ours - {"tested"} <= vars(LearnerProgress).keys()
