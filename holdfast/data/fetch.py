"""Download data sets from their pinned public sources, and check the SHA-256 of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen

from holdfast.errors import HoldfastError, did_you_mean
from holdfast.storage.files import write_bytes

BASE_URL = "https://raw.githubusercontent.com"
TIMEOUT = 60.0
_LACL = "itsmemala/LACL/e24cb824c5f891236a9c878501cb5e6bc26d868c/dat"
# For each stream: its folder in the data directory, and that folder's path under the base URL.
SOURCES = {
    "hwu64": ("hwu64", f"{_LACL}/hwu64_json"),
    "annomi": ("annomi", f"{_LACL}/annomi_strat_json"),
    "annomi-raw": ("annomi_raw", "uccollab/AnnoMI/42936645ec3857a9c84ab296a36a3c34b779ef49"),
    "clinc150": ("clinc150", "clinc/oos-eval/828f8093932c8fe6ca7936c3d2e52903b1c523de/data"),
}

OnFile = Callable[[Path, int, int], None]


def fetch(
    name: str, data_dir: Path, *, base_url: str = BASE_URL, progress: OnFile | None = None
) -> list[Path]:
    """Download the missing or damaged files of a stream; return the paths of all its files.

    A file is written only after its checksum has been verified. `progress` gets the file, the number of
    finished files and the total.
    """
    if name not in SOURCES:
        raise HoldfastError(
            f"nothing to download for {name!r}{did_you_mean(name, SOURCES)}; choose from {', '.join(SOURCES)}"
        )
    folder, source = SOURCES[name]
    sums = {path: checksum for path, checksum in _checksums().items() if path.startswith(f"{folder}/")}
    for done, (path, checksum) in enumerate(sums.items(), start=1):
        target = data_dir / path
        if not _is_right(target, checksum):
            write_bytes(target, _download(f"{base_url}/{source}{path.removeprefix(folder)}", checksum))
        if progress:
            progress(target, done, len(sums))
    return [data_dir / path for path in sums]


def _checksums() -> dict[str, str]:
    lines = (files("holdfast.data") / "checksums.txt").read_text("utf-8").splitlines()
    return {path: checksum for checksum, path in (line.split() for line in lines)}


def _is_right(path: Path, checksum: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == checksum


def _download(url: str, checksum: str) -> bytes:
    try:
        with urlopen(url, timeout=TIMEOUT) as response:
            content: bytes = response.read()
    except (OSError, HTTPException) as error:
        raise HoldfastError(f"{url}: download failed ({error}); check the network and try again") from error
    if (found := hashlib.sha256(content).hexdigest()) != checksum:
        raise HoldfastError(
            f"{url}: wrong checksum, {found[:12]}... instead of {checksum[:12]}...;"
            " nothing was kept, try again"
        )
    return content
