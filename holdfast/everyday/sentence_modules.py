"""Export a learner as modules of sentence-transformers: its logits become a sentence's embedding.

The modules are an encoder, a pooling, a normalisation if the learner has one, and a dense layer. They can
compute one hidden layer's vector of an encoder without adapters, and a head that is linear in that vector.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.everyday.scoring import Scoring, fixed
from holdfast.learning.learner import Learner
from holdfast.models.sources import load_encoder, quiet
from holdfast.storage.files import make_directory, sync_directory, write_json
from holdfast.storage.scratch import Scratch

LABELS = "labels.json"
POOLINGS = {"mean": "mean_tokens", "cls": "cls_token"}


def export_modules(
    path: str | Path, directory: str | Path, *, generation: int | None = None, model: str | None = None
) -> tuple[int, int]:
    """Write a learner to a new directory for `SentenceTransformer`; return its generation and label count.

    `encode(texts)` then gives one logit for each label of `labels.json`; their softmax is what
    `predict_proba` gives. The directory appears in one step.
    """
    path, directory = Path(path), Path(directory)
    if directory.resolve().is_relative_to(path.resolve()):
        raise HoldfastError(f"{directory} lies in the learner's own directory; choose another")
    if directory.is_symlink() or (directory.exists() and any(directory.iterdir())):
        raise HoldfastError(f"{directory} exists; choose a new or empty directory")
    learner = Learner.load(path, generation, model=model)
    weight, bias = linear(learner)
    parent = directory.resolve().parent
    try:
        make_directory(parent)
        with Scratch(parent) as scratch:
            made = scratch / "modules"
            made.mkdir()
            _write(learner, weight, bias, made)
            os.rename(made, directory)
        sync_directory(parent)
    except OSError as error:
        raise HoldfastError(f"cannot write {directory}: {error.strerror or error}") from error
    return learner.generation, len(learner.classes_)


@torch.no_grad()
def linear(learner: Learner) -> tuple[Tensor, Tensor]:
    """Return W and b such that softmax(W v + b) is the learner's answer to a sentence vector v."""
    lift, scoring = fixed(learner.model.head, far=False)
    if why := _obstacle(learner, linear=lift is None and type(scoring) is Scoring):
        raise HoldfastError(
            f"{why}; modules of sentence-transformers can compute linear heads on one layer of an untrained "
            "encoder only: those of the method slda; export others with --onnx"
        )
    temperature = scoring.at("temperature")
    return scoring.at("weight") / temperature, scoring.at("bias") / temperature


def _obstacle(learner: Learner, *, linear: bool) -> str:
    """Return what the modules cannot compute of a learner, or nothing."""
    model = learner.model
    if not linear:
        return "the head of this learner is not linear in the sentence vector"
    if model.reading.layers > 1:
        return f"this learner reads {model.reading.layers} layers of its encoder"
    if model.adapted:
        return "the encoder of this learner has adapters"
    if model.vector not in POOLINGS:
        return "this learner reads the pooler of its encoder"
    return ""


def _write(learner: Learner, weight: Tensor, bias: Tensor, place: Path) -> None:
    model = learner.model
    encoder, tokenizer = model.encoder, model.tokenizer
    if model.adaptable:  # it has adapters, which are off
        encoder, tokenizer = load_encoder(learner.made_of.model, online=False)
    with quiet():
        encoder.save_pretrained(place)
        tokenizer.save_pretrained(place)
    write_json(
        place / "sentence_bert_config.json", {"max_seq_length": model.max_length, "do_lower_case": False}
    )
    width, kinds = weight.shape[1], ["Transformer", "Pooling"]
    kinds += ["Normalize"] if model.reading.normalise else []
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate([*kinds, "Dense"])
    ]
    for one in modules[1:]:
        (place / str(one["path"])).mkdir()
    pooling: dict[str, object] = {"word_embedding_dimension": width}
    pooling |= {f"pooling_mode_{mode}": vector == model.vector for vector, mode in POOLINGS.items()}
    write_json(place / "1_Pooling" / "config.json", pooling)
    dense = place / str(modules[-1]["path"])
    settings = {
        "in_features": width,
        "out_features": len(weight),
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(dense / "config.json", settings)
    tensors = {"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    write_json(place / "modules.json", modules)
    labels = {"generation": learner.generation, "labels": learner.classes_}
    (place / LABELS).write_text(json.dumps(labels, indent=1) + "\n")
