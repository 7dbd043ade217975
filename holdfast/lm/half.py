"""Faster bfloat16 on CPUs without bfloat16 instructions: matrix products in float32, rounded once.

The instructions also accumulate in float32 and round the result, so the precision is the same. Without them
this is at least ten times as fast as torch's own fallback: `python benchmarks/half.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 matrix products."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def quick_half(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context manager that speeds up bfloat16 passes; a no-op where it would not help."""
    slow = any(map(_is_half, model.parameters())) and not has_bfloat16()
    return Float32Products() if slow else nullcontext()  # type: ignore[no-untyped-call]


class Float32Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute bfloat16 matrix products of CPU tensors in float32; other operations are unchanged."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS or not all(map(_is_half, filter(torch.is_tensor, args))):
            return func(*args, **kwargs)
        wide = [one.float() if isinstance(one, Tensor) else one for one in args]
        return func(*wide, **kwargs).to(torch.bfloat16)


def _is_half(value: Tensor) -> bool:
    return value.dtype == torch.bfloat16 and value.device.type == "cpu"
