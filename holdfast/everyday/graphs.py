"""ONNX graphs of a learner: its encoder, the random features of its head, and its scoring."""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.data.batches import Batch
from holdfast.errors import HoldfastError, require
from holdfast.everyday.scoring import Lift, Scoring
from holdfast.models import Network
from holdfast.runtime.sessions import Graph

OPSET = 17
CLOSE = 1e-4  # largest difference in a vector or probability between torch and a graph


class Reader(nn.Module):
    """An encoder that reads sentence vectors as its head sees them."""

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch = Batch(input_ids, attention_mask, input_ids[:, 0])
        return self.model.read(self.model.vectors(batch))


class Tail(nn.Module):
    """The random features of a head, if it has any, and its scoring."""

    def __init__(self, lift: Lift | None, scoring: Scoring) -> None:
        super().__init__()
        self.lift, self.scoring = lift, scoring

    @override
    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.scoring(vectors, self.lift(vectors) if self.lift else None)
        return found


def encoder_graph(model: Network, *, int8: bool) -> bytes:
    """Return the graph from token ids to sentence vectors, checked against torch.

    With `int8` the weights of its matrix products are rounded to 8 bits, for each column of its own scale.
    """
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [9, 8, 7, 6, 5, 0, 0]])
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    axes = {"input_ids": ("batch", "length"), "attention_mask": ("batch", "length"), "vectors": ("batch",)}
    found = _graph(Reader(model), {"input_ids": tokens, "attention_mask": mask}, ("vectors",), axes)
    return _rounded(found) if int8 else found


def lift_graph(lift: Lift) -> bytes:
    """Return the graph from sentence vectors to random features."""
    vectors = _some(len(lift.at("projection")))
    return _graph(lift, {"vectors": vectors}, ("lifted",), dict.fromkeys(("vectors", "lifted"), ("batch",)))


def head_graph(scoring: Scoring, lift: Lift | None, width: int, *, whole: bool) -> bytes:
    """Return the graph from sentence vectors to probabilities and distances.

    Unless it is `whole`, the random features are another input.
    """
    outputs = ("probabilities", "distances")[: 1 + scoring.far]
    inputs = {"vectors": _some(width)}
    module: nn.Module = Tail(lift, scoring)
    if lift is not None and not whole:
        inputs |= {"lifted": lift(inputs["vectors"])}
        module = scoring
    return _graph(module, inputs, outputs, dict.fromkeys((*inputs, *outputs), ("batch",)))


def joined(encoder: bytes, head: bytes) -> bytes:
    """Return one graph from token ids to probabilities and distances."""
    onnx = require("onnx", "onnx")
    first, second = (onnx.load_model_from_string(part) for part in (encoder, head))
    second = onnx.compose.add_prefix(second, "head/", rename_inputs=False, rename_outputs=False)
    second.ir_version = first.ir_version
    merged = onnx.compose.merge_models(first, second, io_map=[("vectors", "vectors")])
    merged.producer_name = "holdfast"
    data: bytes = merged.SerializeToString()
    return data


def _some(width: int) -> Tensor:
    """Return three vectors of about the length that sentence vectors have."""
    drawn = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    return drawn / math.sqrt(width)


@torch.no_grad()
def _graph(
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    axes: Mapping[str, Sequence[str]],
) -> bytes:
    """Return a module as a graph with the first of torch's two exporters whose graph gives its results.

    The older one comes first: it takes a quarter of the time.
    """
    require("onnx", "onnx")
    require("onnxscript", "onnx")
    module.eval()
    why = ""
    for newer in (False, True):
        try:
            data = _exported(module, inputs, outputs, axes, newer=newer)
            if not (why := _difference(module, data, inputs, outputs)):
                return data
        except Exception as error:  # exporters raise errors of many kinds
            why = " ".join(str(error).split())[:200]
    raise HoldfastError(f"this encoder or head cannot be written as ONNX: {why}; export without --onnx")


def _exported(
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    *,
    newer: bool,
) -> bytes:
    with tempfile.TemporaryDirectory() as place, _silent():
        path = Path(place, "graph.onnx")
        options: dict[str, Any] = {"input_names": list(inputs), "output_names": list(outputs)}
        if newer:
            options["dynamic_shapes"] = tuple(
                dict.fromkeys(range(len(axes[name])), torch.export.Dim.DYNAMIC) for name in inputs
            )
            options |= {"dynamo": True, "external_data": False}
        else:
            named = {name: dict(enumerate(of)) for name, of in axes.items()}
            options |= {"dynamo": False, "dynamic_axes": named, "opset_version": OPSET}
        torch.onnx.export(module, tuple(inputs.values()), str(path), **options)
        return path.read_bytes()


def _difference(module: nn.Module, data: bytes, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> str:
    """Return how the graph differs from the module, on the example and on other shapes, or nothing."""
    graph = Graph(data, 1, arena=False)
    if set(graph.outputs) != set(outputs) or set(graph.inputs) != set(inputs):
        return "its inputs or outputs are lost"
    for own in _variants(inputs):
        expected = module(*own.values())
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = graph.run({name: value.numpy() for name, value in own.items()})
        for name, value in zip(outputs, expected, strict=True):
            # Distances are squares of up to thousands.
            size = 1 + float(value.abs().max()) * (name == "distances")
            if found[name].shape != tuple(value.shape):
                return f"{name} has another shape"
            if not np.abs(found[name] - value.numpy()).max() <= CLOSE * size:
                return f"{name} has other values"
    return ""


def _variants(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the example, one row of it, and more and longer rows."""
    yield dict(inputs)
    yield {name: value[:1] for name, value in inputs.items()}
    longer = {name: torch.cat([value, value.flip(0)]) for name, value in inputs.items()}
    if "input_ids" in inputs:
        mask = longer["attention_mask"]
        longer = {
            "input_ids": torch.cat([longer["input_ids"]] * 3, 1),
            "attention_mask": torch.cat([torch.ones_like(mask), mask, mask * 0], 1),
        }
    yield longer


def _rounded(data: bytes) -> bytes:
    """Return a graph whose matrix products have 8-bit weights."""
    quantization = require("onnxruntime.quantization", "onnx")
    with tempfile.TemporaryDirectory() as place, _silent():
        source, target = Path(place, "source.onnx"), Path(place, "target.onnx")
        source.write_bytes(data)
        quantization.quantize_dynamic(
            source, target, weight_type=quantization.QuantType.QInt8, per_channel=True
        )
        return target.read_bytes()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep exporters from printing and warning: what they make is checked."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
