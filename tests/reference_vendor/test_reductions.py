from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, FULL_SHAPES, INTEGERS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

ALL_DTYPES = [*FLOATS, *INTEGERS, torch.bool]


@st.composite
def reduced(
    draw: st.DrawFn, dtype: torch.dtype, shapes: Any = SHAPES, special: bool = False
) -> tuple[torch.Tensor, list[int]]:
    """A tensor and some of its dimensions, negative ones among them."""
    x = draw(values(draw(shapes), dtype, special))
    dims = draw(st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim))
    return x, [dim - x.ndim if x.ndim and draw(st.booleans()) else dim for dim in dims]


@given(data=st.data(), dtype=st.sampled_from(ALL_DTYPES), keepdim=st.booleans())
def test_sum(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype))
    agree("aten::sum", x)
    agree("aten::sum.dim_IntList", x, dims, keepdim)
    agree("aten::sum.dim_IntList", x, None, keepdim)
    agree("aten::sum.dim_IntList", x, dims, keepdim, dtype=torch.float64)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), keepdim=st.booleans())
def test_mean(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype))
    agree("aten::mean", x)
    agree("aten::mean.dim", x, dims, keepdim)


@pytest.mark.parametrize("name", ["amax", "amin"])
@given(data=st.data(), dtype=st.sampled_from(ALL_DTYPES), keepdim=st.booleans())
def test_extremes(name: str, data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype, FULL_SHAPES, special=True))
    agree(f"aten::{name}", x, dims, keepdim)
    agree(f"aten::{name[1:]}", x)


@pytest.mark.parametrize("name", ["max", "min"])
@given(data=st.data(), dtype=st.sampled_from(ALL_DTYPES), keepdim=st.booleans())
def test_extremes_with_positions(name: str, data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype, special=True))
    dim = data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    agree(f"aten::{name}.dim", x, dim, keepdim)
    if dtype is not torch.bool:
        agree(f"aten::arg{name}", x, dim, keepdim)
        agree(f"aten::arg{name}", x)
        agree(f"aten::arg{name}", x, None, keepdim)


def test_the_first_nan_is_the_extreme() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [1.0, 5.0, 5.0, -1.0]])
    for name in ("max", "min"):
        agree(f"aten::{name}.dim", x, 1)
        agree(f"aten::arg{name}", x, 1)
        agree(f"aten::{name}", x)


@pytest.mark.parametrize("op", ["aten::amax", "aten::argmax", "aten::max"])
def test_extremes_of_nothing_are_left_to_the_host(op: str) -> None:
    with pytest.raises(Unsupported):
        run(op, torch.empty(0, 3))


@pytest.mark.parametrize("dims", [[2], [-3], [0, 0], [0, -2]])
def test_impossible_dimensions_are_left_to_the_host(dims: list[int]) -> None:
    with pytest.raises(Unsupported):
        run("aten::sum.dim_IntList", torch.ones(2, 2), dims)


@pytest.mark.parametrize("name", ["any", "all"])
@given(data=st.data(), dtype=st.sampled_from([*FLOATS, torch.int64, torch.bool]), keepdim=st.booleans())
def test_any_and_all(name: str, data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype, special=True))
    agree(f"aten::{name}", x)
    agree(f"aten::{name}.dim", x, data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)), keepdim)


@given(
    data=st.data(),
    dtype=st.sampled_from(FLOATS),
    keepdim=st.booleans(),
    correction=st.sampled_from([None, 0, 1]),
)
def test_variance(data: Any, dtype: torch.dtype, keepdim: bool, correction: int | None) -> None:
    shapes = st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple)
    x, dims = data.draw(reduced(dtype, shapes))
    for op in ("aten::var.correction", "aten::var_mean.correction", "aten::std.correction"):
        agree(op, x, dims, correction=correction, keepdim=keepdim)
        agree(op, x, correction=correction)


def test_variance_without_freedom_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::var.correction", torch.ones(1), None, correction=1)
