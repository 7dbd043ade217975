"""Small steps on weights of half precision: rounded at random, so that they are not lost.

A bfloat16 has eight bits: a step below a 512th of a weight rounds back to where it came from, every time.
Rounded up or down with chances by nearness it is taken on average, and still lands between where it began
and its anchor, as both are representable.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUT = 16  # bits that float32 has and bfloat16 has not


class Rounding:
    """Rounds what one step has computed; the same in every process, and when the step is made again."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._random: dict[torch.device, torch.Generator] = {}

    def into(self, weight: Tensor, value: Tensor) -> None:
        """Write a value into a weight."""
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
    """The anchor of a weight; where it is kept more coarsely than the weight and cannot be told from it, the
    weight itself: nothing is drawn to a rounding error."""
    if anchor.dtype.itemsize >= u.dtype.itemsize:
        return anchor
    return torch.where(u.to(anchor.dtype) == anchor, u, anchor.to(u.dtype))
