"""Stochastic rounding to bfloat16, so that small steps are not lost.

bfloat16 has eight significant bits: rounding to nearest always discards a step below 1/512 of a weight.
Stochastic rounding is correct on average. The result stays between the weight and its anchor if the anchor
is representable in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUT = 16  # bits of a float32 that a bfloat16 does not have


class Rounding:
    """Round the results of one step; the step is the seed, so that all processes and resumed runs agree."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._random: dict[torch.device, torch.Generator] = {}

    def into(self, weight: Tensor, value: Tensor) -> None:
        """Write a value into a weight, with stochastic rounding if the weight is bfloat16."""
        if weight.dtype != torch.bfloat16:
            weight.copy_(value)
            return
        if weight.device not in self._random:
            self._random[weight.device] = torch.Generator(weight.device).manual_seed(self.step)
        noise = torch.randint(
            0,
            1 << CUT,
            value.shape,
            generator=self._random[weight.device],
            dtype=torch.int32,
            device=value.device,
        )
        bits = value.to(torch.float32).view(torch.int32)
        weight.copy_((bits + noise).bitwise_and_(-1 << CUT).view(torch.float32))


def near(u: Tensor, anchor: Tensor) -> Tensor:
    """Return the anchor; if it is stored in lower precision than u, return u where u rounds to it.

    This keeps weights from being pulled by a mere rounding error of the anchor.
    """
    if anchor.dtype.itemsize >= u.dtype.itemsize:
        return anchor
    return torch.where(u.to(anchor.dtype) == anchor, u, anchor.to(u.dtype))
