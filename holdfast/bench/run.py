"""One run of a spec: a method learns a stream and writes a record. A killed run resumes at its current trial.

A run reuses the record of the same spec, else the state after the last finished task and the finished
trials of the current task (`learning/trials.py`). Resuming fails if the data has changed; if the code
has changed, it only prints a caution.
"""

from __future__ import annotations

import hashlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from holdfast.bench.records import Record, read_record
from holdfast.bench.spec import NAMED, Spec
from holdfast.bench.tracking import Tracked, check_tracker, tracked
from holdfast.bench.worker import Job
from holdfast.data.tasks import Stream, Task
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.fields import to_json
from holdfast.learning.directory import version_of
from holdfast.learning.learner import Learner
from holdfast.learning.lesson import Lesson
from holdfast.learning.passes import Passes, added
from holdfast.learning.trials import StoredTrial, code_hash, using
from holdfast.maths import metrics
from holdfast.models import build_classifier
from holdfast.storage.files import locked, write_json
from holdfast.storage.generations import Store

PACKAGES = (
    "holdfast",
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "scikit-learn",
    "home-assistant-intents",
)
"""Packages whose versions a record holds."""


def run(
    spec: Spec,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    share: bool = False,
    track: str | None = None,
) -> Record:
    """Make the record of a spec in `out`, or return the existing one.

    With `share`, training that another run in `out` has finished is reused.
    """
    path = out / f"{spec.digest()}.json"
    workspace = out / ".trials" / path.stem
    if path.exists():
        record: Record = read_record(path, spec)
        shutil.rmtree(workspace, ignore_errors=True)  # left if the run was killed after writing the record
        return record
    if not NAMED.keys() <= spec.set.keys():
        raise HoldfastError(f"{spec.title}: made before runs named their plan; make the spec again")
    # Check the whole request first, so that an error leaves no files behind.
    whole, settings = spec.load_stream(data_dir), spec.settings()
    stream = spec.cut(whole)
    method, fixed = spec.make_method()
    model = build_classifier(spec.model, settings, seed=spec.seed, labels=whole.labels, method=method)
    lessons = method.curriculum(stream)
    for task in lessons:
        model.head.admit(task)
    logs = out / "tracking" / f"{spec.method}-{path.stem}"
    accelerator = Accelerator(log_with=check_tracker(track), project_dir=logs if track else None)
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HoldfastError(f"cannot write to {out}: {error.strerror}; choose another --out") from error
    # Processes launched together work on one run; only the main process takes the lock.
    with locked(workspace, patience=3.0) if accelerator.is_main_process else nullcontext():
        if path.exists():  # made by the previous holder of the lock
            shutil.rmtree(workspace, ignore_errors=True)
            return read_record(path, spec)
        learner = Learner(
            model,
            method,
            lessons.scenario,
            settings,
            seed=spec.seed,
            fixed=fixed,
            workspace=workspace,
            shared=pool_of(out) if share else None,
            progress=(progress if accelerator.is_main_process else None) or Progress(),
            accelerator=accelerator,
        )
        with tracked(learner, spec, track):
            record = _learn_all(
                spec, learner, stream, lessons, Store(workspace / "state", keep=2), data_of(whole)
            )
        if accelerator.is_main_process:
            write_json(path, record)
            shutil.rmtree(workspace, ignore_errors=True)
    return record


def run_job(job: Job, progress: Progress) -> None:
    """Make the record of a worker's job."""
    data_dir = Path(job.data_dir) if job.data_dir else None
    spec = Spec.from_json(job.spec)
    run(spec, Path(job.out), data_dir=data_dir, progress=progress, share=job.share, track=job.track)


def _learn_all(
    spec: Spec, learner: Learner, stream: Stream, lessons: Stream, store: Store, data: str
) -> Record:
    started = time.perf_counter()
    chosen: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    scores: dict[str, list[list[float | None]]] = {"test": [], "valid": []}
    passes: dict[str, Passes] = {"chosen": {}, "search": {}}
    spent, peak = 0.0, 0
    revisions: list[str | None] = []
    codes: list[str] = []
    if store.current is not None:
        saved = store.load()
        tensors, meta = saved.tensors, saved.sections
        anew = f"to restart this run, delete {store.root.parent}"
        if meta["run"].get("data", data) != data:
            raise HoldfastError(f"{spec.stream} has changed since this run began; {anew}")
        try:
            learner.load_state(tensors, meta["learner"])
            chosen, trials, scores, passes, spent = (
                meta["run"][k] for k in ("chosen", "trials", "scores", "passes", "seconds")
            )
        except (KeyError, TypeError, HoldfastError) as error:
            raise HoldfastError(f"cannot resume a run of another version ({error}); {anew}") from None
        revisions, peak = meta["run"].get("revisions", []), meta["run"].get("peak_memory", 0)
        codes = meta["run"].get("codes", [])
        if isinstance(learner.progress, Tracked):  # continue the logged curves
            learner.progress.step = meta["run"].get("step", 0)
        learner.progress.note(f"resuming after task {learner.tasks_seen} of {len(lessons)}")
        if codes and codes[-1] != code_hash()[:12]:
            learner.progress.note("caution: other code was used for the first tasks; the record names both")
    # The revision is read at the start: later commits do not affect this run. A resumed run may have several.
    revisions = list(dict.fromkeys([*revisions, _revision()]))
    codes = list(dict.fromkeys([*codes, code_hash()[:12]]))
    for caution in learner.method.cautions(stream.scenario):
        learner.progress.note(f"caution: {caution}")
    learner.progress.plan(len(lessons))
    for lesson_number in range(learner.tasks_seen, len(lessons)):
        lesson = learner.learn(lessons.tasks[lesson_number])
        # Reused trials count with their original time.
        spent += sum(trial.seconds for trial in lesson.trials if trial.found)
        chosen.append(_chosen(lesson))
        earlier = stream.tasks[:lesson_number] if len(lessons) == len(stream) else ()
        tried = [to_json(trial.summary() | _kept(learner, trial, earlier)) for trial in lesson.trials]
        trials.append({"task": lesson.task, "trials": tried})
        passes = {
            "chosen": added(passes["chosen"], lesson.chosen_passes),
            "search": added(passes["search"], lesson.search_passes),
        }
        # Joint training is one lesson whose row is the last of the matrix; otherwise lesson k fills row k.
        learnt = lesson_number + 1 + len(stream) - len(lessons)
        for part, rows in scores.items():
            rows += [[None] * len(stream)] * (learnt - 1 - len(rows))
            known = [learner.score(getattr(task, part)) for task in stream.tasks[:learnt]]
            rows.append(known + [None] * (len(stream) - learnt))
        learner.progress.tested(scores["test"][-1])
        seconds = spent + time.perf_counter() - started
        tensors, state = learner.state()
        run_state = {
            "chosen": chosen,
            "trials": trials,
            "scores": scores,
            "passes": passes,
            "seconds": seconds,
            "peak_memory": max(peak, _peak_memory(learner.accelerator.device)),
            "revisions": revisions,
            "codes": codes,
            "data": data,
            "step": learner.progress.step if isinstance(learner.progress, Tracked) else 0,
        }
        if learner.accelerator.is_main_process:
            store.commit(tensors, {"learner": state, "run": run_state})
            learner.drop_trials()
        learner.accelerator.wait_for_everyone()
    predictions = [learner.predict(task.test.texts) for task in stream]
    return {
        "spec": spec.to_json(),
        "data": data,
        "scenario": stream.scenario,
        "tasks": [task.name for task in stream],
        "chosen": chosen,
        "trials": trials,
        "scores": scores,
        "metrics": summarise(scores["test"]),
        # Predictions of the finished learner for every test sentence: paired comparisons need them.
        "predictions": predictions,
        "confusion": [
            confusion(task.test.labels, own) for task, own in zip(stream, predictions, strict=True)
        ],
        "passes": passes,
        "seconds": round(spent + time.perf_counter() - started, 3),
        "peak_memory": max(peak, _peak_memory(learner.accelerator.device)),
        "device": learner.accelerator.device.type,
        "precision": learner.accelerator.mixed_precision,
        "processes": learner.accelerator.num_processes,
        "cpu": _cpu(),
        "versions": {"python": platform.python_version()} | versions(),
        "revision": ", ".join(filter(None, revisions)) or None,
        "code": ", ".join(codes),
    }


def _kept(learner: Learner, trial: StoredTrial, earlier: Sequence[Task]) -> dict[str, Any]:
    """Return a trial's scores on the validation sentences of earlier tasks, which no search sees."""
    if not earlier:
        return {}
    with using(learner.model, trial):
        return {"old": [learner.score(task.valid) for task in earlier]}


def confusion(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return, for each label, how many of its sentences were taken for which label.

    >>> confusion(["on", "on", "off"], ["on", "off", "off"])
    {'off': {'off': 1}, 'on': {'off': 1, 'on': 1}}
    """
    found: dict[str, dict[str, int]] = {}
    for (label, guess), count in sorted(Counter(zip(gold, predicted, strict=True)).items()):
        found.setdefault(label, {})[guess] = count
    return found


def data_of(stream: Stream) -> str:
    """Return a hash of a stream's tasks in any order: the data behind a name may change."""
    tasks = sorted((task.name, task.train, task.valid, task.test) for task in stream)
    told = [f"({name!r}, {', '.join(split.spelled() for split in splits)})" for name, *splits in tasks]
    return hashlib.sha256(f"[{', '.join(told)}]".encode()).hexdigest()[:12]


def summarise(F: metrics.Matrix) -> dict[str, float | None]:
    """Return the paper's metrics of one run. FWT needs the matching `seq` run: the report fills it in."""
    if any(F[k][i] is None for k in range(len(F)) for i in range(k + 1)):
        return {"Ov": metrics.overall(F), "CF": None, "BWT+": None, "FWT": None}
    return {
        "Ov": metrics.overall(F),
        "CF": metrics.forgetting(F),
        "BWT+": metrics.positive_backward_transfer(F),
        "FWT": None,
    }


def _chosen(lesson: Lesson) -> dict[str, Any]:
    trial = lesson.decision.trial
    values: Any = to_json(
        {"task": lesson.task, **trial.choice, "score": trial.score, **lesson.decision.notes}
    )
    return dict(values)


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process in bytes, on the GPU if it uses one."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent's memory at the fork
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def pool_of(out: Path) -> Path:
    """Return the folder of training results that runs share; `bench` deletes it after a complete suite."""
    return out / ".trials" / "shared"


def versions() -> dict[str, str | None]:
    """Return the installed versions of `PACKAGES`."""
    return {name: version_of(name) for name in PACKAGES}


def _cpu() -> str | None:
    """Return the name of the processor: on another kind, numbers may differ slightly."""
    told = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.+)$", told.read_text(), re.MULTILINE) if told.exists() else None
    return (named[1].strip() if named else platform.processor()) or None


def _revision() -> str | None:
    """Return the git revision of the code, marked "-dirty" if it was edited since; None if unknown."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=10)

    try:
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return None  # installed inside another repository
        found = git("describe", "--always", "--abbrev=12").stdout.strip()
        edited = found and git("status", "--porcelain", "--", ".").stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{found}-dirty" if edited else found or None
