"""Faster bfloat16 on CPUs for which oneDNN does not support it: matrix products in float32, then rounded.

torch's own fallback is much slower; `python benchmarks/half.py` compares them.
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
    """Return whether oneDNN supports bfloat16 on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def quick_half(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context manager that speeds up bfloat16 models on CPU; a no-op where it would not help."""
    slow = any(map(_is_half, model.parameters())) and not has_bfloat16()
    return Float32Products() if slow else nullcontext()  # type: ignore[no-untyped-call]


class Float32Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute mm, addmm and bmm of bfloat16 CPU tensors in float32; leave other operations unchanged."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS or not all(map(_is_half, filter(torch.is_tensor, args))):
            return func(*args, **kwargs)
        wide = [one.float() if isinstance(one, Tensor) else one for one in args]
        return func(*wide, **kwargs).to(torch.bfloat16)


def _is_half(value: Tensor) -> bool:
    return value.dtype == torch.bfloat16 and value.device.type == "cpu"
