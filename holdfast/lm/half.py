"""Half precision on CPUs that have no instructions for it: products in float32, each rounded once.

The same numbers as where there are instructions (they too sum in float32 and round the result), and on a CPU
without them a tenth of the time of torch's own way or less: `python benchmarks/half.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def quick_half(model: nn.Module) -> AbstractContextManager[Any]:
    """Around passes of a model; does nothing where there is nothing to gain."""
    slow = any(map(_is_half, model.parameters())) and not has_bfloat16()
    return Float32Products() if slow else nullcontext()  # type: ignore[no-untyped-call]


class Float32Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes bfloat16 products of CPU tensors through float32; leaves everything else alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation."""
        kwargs = kwargs or {}
        if func not in PRODUCTS or not all(map(_is_half, filter(torch.is_tensor, args))):
            return func(*args, **kwargs)
        wide = [one.float() if isinstance(one, Tensor) else one for one in args]
        return func(*wide, **kwargs).to(torch.bfloat16)


def _is_half(value: Tensor) -> bool:
    return value.dtype == torch.bfloat16 and value.device.type == "cpu"
