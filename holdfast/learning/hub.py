"""Share a learner: a folder with one generation of it, on this machine or on the Hugging Face hub."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import HoldfastError, require
from holdfast.learning import directory, sections
from holdfast.learning.sections import Origin, Saved, new_key
from holdfast.maths.params import Params
from holdfast.models import Network
from holdfast.storage.files import write_bytes
from holdfast.storage.generations import FILE, MANIFEST, POINTER, Store

PATTERNS = [POINTER, "README.md", f"generation-*/{MANIFEST}", f"generation-*/{FILE}"]
OURS = re.compile(rf"{POINTER}|README\.md|generation-\d{{6}}/({re.escape(MANIFEST)}|{re.escape(FILE)})")
MOST_FILES, MOST_BYTES = 64, 8 * 10**9  # of a repository that is read


class Sharable(Protocol):
    """What is shared of a learner."""

    fixed: frozenset[str]
    model: Network

    @property
    def made_of(self) -> Origin:
        """What the learner was created from."""

    @property
    def classes_(self) -> list[str]:
        """Labels that can be predicted."""

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Return everything that is saved."""

    def write_card(self, path: Path, card: str) -> None:
        """Write the model card."""


def save_shared(
    learner: Sharable, path: Path, *, encoder: str | None = None, place: str = "<this folder>"
) -> None:
    """Write a learner to a folder as its only generation, without what names its lessons' rows."""
    origin = _named(learner.made_of, encoder)
    tensors, meta = learner.state()
    kept = [{name: one[name] for name in one if name not in ("id", "gone")} for one in meta["history"]]
    state = tensors, meta | {"history": kept}
    card = directory.card(origin, learner.model.head, kept, learner.classes_)
    for old, new in (
        ('Learner.load("<this folder>")', f'Learner.from_pretrained("{place}")'),
        ("pipeline_tag: text-classification\n", "pipeline_tag: text-classification\ntags: [holdfast]\n"),
    ):
        card = card.replace(old, new, 1)
    with directory.working_in(path):
        if Store(path).current is not None:  # its older generations would be deleted
            raise HoldfastError(f"{path} already holds a learner; choose a new or empty directory")
        saved = Saved(origin, sorted(learner.fixed), new_key(), state)
        groups, parts = sections.written(saved, path, learner.model.head.kind)
        Store(path, keep=1).commit(groups, parts)
        learner.write_card(path, card)


def push(
    learner: Sharable,
    repo_id: str,
    *,
    private: bool | None,
    encoder: str | None,
    token: str | None,
    message: str,
) -> str:
    """Upload a learner to a repository of the hub, created if absent; return the id of the commit."""
    if Path(learner.made_of.model).is_absolute() and encoder is None:
        raise HoldfastError(
            "the encoder of this learner is a folder of this machine; push it too, and say its name: "
            "push_to_hub(..., encoder='owner/name')"
        )
    hub = require("huggingface_hub", "all")
    with tempfile.TemporaryDirectory() as place:
        save_shared(learner, Path(place) / "state", encoder=encoder, place=repo_id)
        try:
            api = hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo_id,
                folder_path=Path(place) / "state",
                allow_patterns=PATTERNS,
                delete_patterns=["generation-*/*"],
                commit_message=message,
            )
        except Exception as error:  # the exceptions of the hub client vary with its version
            raise HoldfastError(
                f"{repo_id}: cannot be uploaded ({_reason(error)}); check the name, the token and the network"
            ) from error
    return str(done.oid)


def fetch(repo_id: str, into: Path, *, revision: str | None, token: str | None) -> None:
    """Download the files of a state from a repository of the hub; nothing else of it is read.

    The files whose sizes are checked are those that are downloaded, by name and commit. The client's cache
    holds links, which a state may not contain: its files are copied. In offline mode the cache is enough.
    """
    hub = require("huggingface_hub", "all")
    try:
        try:
            info = hub.HfApi(token=token).model_info(repo_id, revision=revision, files_metadata=True)
        except hub.errors.OfflineModeIsEnabled:
            found = hub.snapshot_download(
                repo_id, revision=revision, allow_patterns=PATTERNS, local_files_only=True
            )
            snapshot = Path(found)
        else:
            sizes = {one.rfilename: one.size or 0 for one in info.siblings if OURS.fullmatch(one.rfilename)}
            if POINTER not in sizes:
                raise _no_state(repo_id)
            if len(sizes) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
                raise HoldfastError(f"{repo_id} is too large for a learner; ask whoever pushed it")
            found = hub.snapshot_download(
                repo_id, revision=info.sha, token=token, allow_patterns=sorted(sizes)
            )
            snapshot = Path(found)
            _remember(snapshot, revision or hub.constants.DEFAULT_REVISION)
    except HoldfastError:
        raise
    except Exception as error:  # the exceptions of the hub client vary with its version
        raise HoldfastError(
            f"{repo_id}: cannot be fetched ({_reason(error)}); check the name, the revision and the network"
        ) from error
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    if POINTER not in names:
        raise _no_state(repo_id)
    for name in filter(OURS.fullmatch, names):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(snapshot / name, target)


def _remember(snapshot: Path, revision: str) -> None:
    """Note in the client's cache which commit a branch or tag is, so that its name works offline.

    The client does so itself only where it resolves the name.
    """
    if revision != snapshot.name:
        with suppress(HoldfastError):  # what was fetched can be used all the same
            write_bytes(snapshot.parents[1] / "refs" / revision, snapshot.name.encode())


def _no_state(repo_id: str) -> HoldfastError:
    return HoldfastError(f"{repo_id} holds no Holdfast state; check the name and the revision")


@contextmanager
def found(source: str | Path, *, revision: str | None, token: str | None) -> Iterator[Path]:
    """Yield the folder of a state: the given one, or that of a repository of the hub, for a while."""
    if Path(source).is_dir():
        if revision is not None:
            raise HoldfastError(f"{source} is a folder: it has generations, no revisions; use Learner.load")
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as place:
        fetch(str(source), Path(place), revision=revision, token=token)
        try:
            yield Path(place)
        except HoldfastError as error:
            raise HoldfastError(str(error).replace(place, str(source))) from error


def _named(origin: Origin, encoder: str | None) -> Origin:
    """Return an origin whose encoder is found under another name."""
    return origin if encoder is None else replace(origin, model=encoder)


def _reason(error: Exception) -> str:
    """Return the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
