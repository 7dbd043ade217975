"""bfloat16 products in float32: forward and backward results are as precise as bfloat16 hardware."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast.lm import half
from holdfast.lm.half import Float32Products, quick_half


def passes(dtype: torch.dtype, *, bias: bool = True) -> list[Tensor]:
    """Return a layer's output and gradients for inputs that bfloat16 represents exactly."""
    torch.manual_seed(0)
    layer = nn.Linear(48, 24, bias=bias).to(torch.bfloat16).to(dtype)
    x = torch.randn(3, 7, 48).to(torch.bfloat16).to(dtype).requires_grad_()
    out = layer(x)
    out.backward(torch.randn(3, 7, 24).to(torch.bfloat16).to(dtype))
    return [out.detach(), x.grad, *(weight.grad for weight in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_summed_wide_and_rounded_once(bias):
    exact = passes(torch.float64, bias=bias)
    with Float32Products():
        mine = passes(torch.bfloat16, bias=bias)
    for found, true in zip(mine, exact, strict=True):
        assert found.dtype == torch.bfloat16
        # One rounding to eight significant bits, plus the float32 error.
        assert ((found.double() - true).abs() <= true.abs() * 2**-8 + 1e-5).all()


def test_batched_products_too():
    a, b = torch.randn(2, 5, 16).bfloat16(), torch.randn(2, 16, 6).bfloat16()
    with Float32Products():
        found = torch.bmm(a, b)
    assert torch.equal(found, torch.bmm(a.float(), b.float()).bfloat16())


def test_other_precisions_are_left_alone():
    plain = passes(torch.float32)
    with Float32Products():
        within = passes(torch.float32)
    for one, other in zip(plain, within, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("instructions", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_nothing_is_done_where_there_is_nothing_to_gain(monkeypatch, instructions, dtype):
    monkeypatch.setattr(half, "has_bfloat16", lambda: instructions)
    assert not isinstance(quick_half(nn.Linear(2, 2).to(dtype)), Float32Products)


def test_half_a_model_without_instructions_is_helped(monkeypatch):
    monkeypatch.setattr(half, "has_bfloat16", lambda: False)
    assert isinstance(quick_half(nn.Linear(2, 2).bfloat16()), Float32Products)
