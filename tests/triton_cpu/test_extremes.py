"""Maxima and minima of a row, which are kept in one variable: NaN, infinities, every dtype."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def _greater(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL).to(
        a.dtype
    )  # Triton 3.8 gives float32 for bfloat16


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL).to(a.dtype)


@triton.jit
def extremes(
    x, most, least, n, FILL_LOW: tl.constexpr, FILL_HIGH: tl.constexpr, NAN: tl.constexpr, BLOCK: tl.constexpr
):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    low = tl.load(x + row * n + i, mask=i < n, other=FILL_LOW)
    high = tl.load(x + row * n + i, mask=i < n, other=FILL_HIGH)
    if NAN:
        tl.store(most + row, tl.reduce(low, 0, _greater))
        tl.store(least + row, tl.reduce(high, 0, _smaller))
    else:
        tl.store(most + row, tl.max(low, 0))
        tl.store(least + row, tl.min(high, 0))


def _both(x: torch.Tensor, *, nan: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if x.is_floating_point():
        low, high = float("-inf"), float("inf")
    else:
        low, high = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
    most, least = torch.zeros(len(x), dtype=x.dtype), torch.zeros(len(x), dtype=x.dtype)
    extremes[(len(x),)](x, most, least, x.shape[1], FILL_LOW=low, FILL_HIGH=high, NAN=nan, BLOCK=64)
    return most, least


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def _rows(dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(6, 64).to(dtype)
    x[1, 5], x[2, 3], x[3, :] = float("nan"), float("inf"), float("nan")
    x[4, :], x[5, ::2] = float("-inf"), float("nan")
    return x


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_nan_counts_only_where_there_is_nothing_else(dtype: torch.dtype) -> None:
    x = _rows(dtype)
    most, least = _both(x)
    expected = x.clone(), x.clone()
    for values, fill in zip(expected, (float("-inf"), float("inf")), strict=True):
        values[values.isnan()] = fill
    torch.testing.assert_close(most[[0, 1, 2, 4, 5]], expected[0].amax(1)[[0, 1, 2, 4, 5]], rtol=0, atol=0)
    torch.testing.assert_close(least[[0, 1, 2, 4, 5]], expected[1].amin(1)[[0, 1, 2, 4, 5]], rtol=0, atol=0)
    assert most[3].isnan()
    assert least[3].isnan()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_nan_decides_where_it_is_asked_to(dtype: torch.dtype) -> None:
    x = _rows(dtype)
    most, least = _both(x, nan=True)
    torch.testing.assert_close(most, x.amax(1), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(least, x.amin(1), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [1, 63, 64])
def test_integers(dtype: torch.dtype, width: int) -> None:
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (3, width), dtype=dtype)
    most, least = _both(x)
    assert torch.equal(most, x.amax(1))
    assert torch.equal(least, x.amin(1))
