from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import EVERY, FLOATS, INTEGERS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

NUMBERS = [dtype for dtype in EVERY if dtype is not torch.float16]


@st.composite
def rows(draw: st.DrawFn, dtype: torch.dtype, special: bool = False) -> tuple[torch.Tensor, int]:
    x = draw(values(draw(SHAPES), dtype, special))
    return x, draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))


@given(data=st.data(), dtype=st.sampled_from(NUMBERS))
def test_sums_and_products(data: Any, dtype: torch.dtype) -> None:
    x, dim = data.draw(rows(dtype))
    for op in ("aten::cumsum", "aten::cumprod"):
        agree(op, x, dim)
        agree(op, x, dim, dtype=torch.complex128)
        if not dtype.is_complex:
            agree(op, x, dim, dtype=torch.float64)


@given(
    data=st.data(),
    dtype=st.sampled_from([*FLOATS, *INTEGERS, torch.bool]),
    name=st.sampled_from(["max", "min"]),
)
def test_extremes(data: Any, dtype: torch.dtype, name: str) -> None:
    x, dim = data.draw(rows(dtype, special=True))
    made = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=torch.int64)
    run(f"aten::_cum{name}_helper", x, *made, dim)
    for answer, host in zip(made, getattr(torch, f"cum{name}")(x, dim), strict=True):
        torch.testing.assert_close(answer, host, rtol=0, atol=0, equal_nan=True)


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_logcumsumexp(data: Any, dtype: torch.dtype) -> None:
    x, dim = data.draw(rows(dtype))
    agree("aten::_logcumsumexp", x, dim)
    agree(
        "aten::_logcumsumexp",
        torch.tensor([-float("inf"), -float("inf"), 1, 500, float("inf")], dtype=dtype),
        0,
    )


@pytest.mark.parametrize("size", [4095, 4096, 100_003])
def test_long_sums(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator)
    agree("aten::cumsum", x, 0)
    agree("aten::cumsum", x.double(), 0)
    x[size // 2] = float("inf")
    x[size // 2 + 2000] = float("nan")
    agree("aten::cumsum", x, 0)
    agree("aten::cumsum", torch.randn(3, size // 3, generator=generator), 1)


def test_an_impossible_dimension_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::cumsum", torch.ones(2), 1)


@pytest.mark.parametrize("odd", [0.0, float("nan"), float("inf")])
def test_long_sums_are_those_of_double_precision(odd: float) -> None:
    x = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    x[70_001] += odd
    exact = x.double().cumsum(0)
    made = torch.from_numpy(run("aten::cumsum", x, 0))
    torch.testing.assert_close(made, exact.float(), rtol=2e-7, atol=0, equal_nan=True)
