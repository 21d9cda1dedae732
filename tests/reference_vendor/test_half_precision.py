"""float16 and bfloat16 are computed in float32 and rounded once: no further from the truth than on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from against_host import given, mapped, overload
from hypothesis import strategies as st
from test_accuracy import CASES

import flroute
from flroute.reference_vendor.half_precision import HALVES, rounded_to, widened

CARRIERS = {torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(np.uint16)}


def bits_of(tensor: torch.Tensor) -> Any:
    """What a kernel receives."""
    return tensor.view(torch.int16).numpy().view(CARRIERS[tensor.dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_is_widened_exactly(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    wide = torch.from_numpy(widened(bits_of(every)))
    assert wide.dtype is torch.float32
    assert torch.equal(wide.isnan(), every.isnan())
    assert torch.equal(wide.nan_to_num(7), every.float().nan_to_num(7))


@pytest.mark.parametrize("dtype", HALVES)
@given(seed=st.integers(0, 2**31), strided=st.booleans())
def test_numbers_are_rounded_as_pytorch_rounds_them(dtype: torch.dtype, seed: int, strided: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-(2**31), 2**31, (4096,), generator=generator, dtype=torch.int64)
    x = x.to(torch.int32).view(torch.float32)  # any bits: denormals, infinities and NaN among them
    x = torch.cat([x, torch.randn(4096, generator=generator), torch.tensor([0.0, -0.0, 3.4e38, 65519.9])])
    x = x[::3] if strided else x
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(rounded_to(CARRIERS[dtype], x.numpy()))
    made, expected = torch.from_numpy(rounded.view(np.int16)).view(dtype), x.to(dtype)
    assert torch.equal(made.isnan(), expected.isnan())
    assert torch.equal(made.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(made.signbit() | made.isnan(), expected.signbit() | expected.isnan())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [name for name, (op, _) in CASES.items() if "nll" not in op])
def test_accuracy(name: str, dtype: torch.dtype) -> None:
    op, arguments = CASES[name]
    args = mapped(lambda t: t.to(dtype) if t.is_floating_point() else t, arguments())
    exact = overload(op)(*mapped(lambda t: t.double() if t.is_floating_point() else t, args))
    host = overload(op)(*args)
    with flroute.enable("reference", fallback="error", default_device=False):
        ours = mapped(torch.Tensor.cpu, overload(op)(*mapped(lambda t: t.to("fl"), args)))
    for got, theirs, truth in zip(*map(_as_list, (ours, host, exact)), strict=True):
        assert got.dtype == theirs.dtype
        assert _worst(got, truth) <= 2 * _worst(theirs, truth)


def _as_list(answer: Any) -> list[torch.Tensor]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def _worst(values: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest error in units of the truth, where that is not overflow for both."""
    counts = truth.abs() < torch.finfo(values.dtype).max / 2
    error = (values.double() - truth).abs() / truth.abs().clamp(min=1e-2)
    return float(error[counts].max()) if counts.any() else 0.0


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "in place": lambda x, y: x.add_(y),
    "in place, strided": lambda x, y: x.t().mul_(y),
    "out": lambda x, y: torch.sub(y, x, out=x),
    "lists": lambda x, y: torch._foreach_mul_([x[0], x[1]], [y[1], y[0]]),
    "a list and a number": lambda x, _: torch._foreach_add_([x[0], x[1]], 0.1),
    "a wider result": lambda x, y: y.copy_(x.sum(0, dtype=torch.float32)[:, None]),
    "a result of its own dtype": lambda x, y: y.copy_(x.sum(0, dtype=x.dtype)),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WRITES)
def test_writes_are_those_of_the_host(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(3, 3, generator=generator).to(dtype) for _ in range(2)]
    device = [t.to("fl") for t in host]
    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        for _ in range(2):
            WRITES[name](*host)
            WRITES[name](*device)
            for a, b in zip(host, device, strict=True):
                assert torch.equal(a, b.cpu())
    assert {d.op for d in session.fallbacks} <= {"aten::copy_"}
