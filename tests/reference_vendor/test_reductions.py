from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import EVERY, FLOATS, FULL_SHAPES, INTEGERS, SHAPES, agree, given, mapped, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

ALL_DTYPES = [*FLOATS, *INTEGERS, torch.bool]
SUMMED = [dtype for dtype in EVERY if dtype is not torch.float16]


@st.composite
def reduced(
    draw: st.DrawFn, dtype: torch.dtype, shapes: Any = SHAPES, special: bool = False
) -> tuple[torch.Tensor, list[int]]:
    """A tensor and some of its dimensions, negative ones among them."""
    x = draw(values(draw(shapes), dtype, special))
    dims = draw(st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim))
    return x, [dim - x.ndim if x.ndim and draw(st.booleans()) else dim for dim in dims]


@given(data=st.data(), dtype=st.sampled_from(SUMMED), keepdim=st.booleans())
def test_sum(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype))
    agree("aten::sum", x)
    agree("aten::sum.dim_IntList", x, dims, keepdim)
    agree("aten::sum.dim_IntList", x, None, keepdim)
    agree("aten::sum", x, dtype=torch.complex64)
    if not dtype.is_complex:
        agree("aten::sum.dim_IntList", x, dims, keepdim, dtype=torch.float64)
        agree("aten::nansum", x, dims or None, keepdim)
    if not (dtype.is_complex or dtype.is_floating_point):
        agree("aten::sum.dim_IntList", x, dims, keepdim, dtype=torch.int32)
        agree("aten::sum", x, dtype=torch.bool)


@given(data=st.data(), dtype=st.sampled_from(SUMMED), keepdim=st.booleans())
def test_mean(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype))
    if dtype.is_floating_point or dtype.is_complex:
        agree("aten::mean", x)
        agree("aten::mean.dim", x, dims, keepdim)
    else:
        agree("aten::mean", x, dtype=torch.float64)
        with pytest.raises(Unsupported):
            run("aten::mean", x)


@given(data=st.data(), dtype=st.sampled_from(SUMMED), keepdim=st.booleans())
def test_products(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree("aten::prod", x[:2] if x.ndim else x)
    agree("aten::prod.dim_int", x, data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)), keepdim)


@given(data=st.data(), dtype=st.sampled_from(FLOATS), keepdim=st.booleans())
def test_logsumexp_and_nansum_of_odd_values(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x, dims = data.draw(reduced(dtype, special=True))
    if dims:
        agree("aten::logsumexp", x, dims, keepdim)
    agree("aten::nansum", x.where(x.abs() < 1e30, torch.nan), dims, keepdim)


@given(data=st.data(), dtype=st.sampled_from(SUMMED))
def test_count_nonzero(data: Any, dtype: torch.dtype) -> None:
    x, dims = data.draw(reduced(dtype))
    agree("aten::count_nonzero.dim_IntList", x, dims)


@given(data=st.data(), dtype=st.sampled_from(ALL_DTYPES), keepdim=st.booleans())
def test_aminmax(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype, special=True))
    agree("aten::aminmax", x)
    agree("aten::aminmax", x, keepdim=keepdim)
    agree(
        "aten::aminmax", x, dim=data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)), keepdim=keepdim
    )


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
@given(data=st.data(), dtype=st.sampled_from(SUMMED), keepdim=st.booleans())
def test_any_and_all(name: str, data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype, special=True))
    agree(f"aten::{name}", x)
    agree(f"aten::{name}.dim", x, data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1)), keepdim)
    for dims in (None, [], list(range(x.ndim))[1:]):
        agree(f"aten::{name}.dims", x, dims, keepdim)


@given(
    data=st.data(),
    dtype=st.sampled_from([*FLOATS, torch.complex64, torch.complex128]),
    keepdim=st.booleans(),
    correction=st.sampled_from([None, 0, 1]),
)
def test_variance(data: Any, dtype: torch.dtype, keepdim: bool, correction: int | None) -> None:
    shapes = st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple)
    x, dims = data.draw(reduced(dtype, shapes))
    for op in (
        "aten::var.correction",
        "aten::var_mean.correction",
        "aten::std.correction",
        "aten::std_mean.correction",
    ):
        agree(op, x, dims, correction=correction, keepdim=keepdim)
        agree(op, x, correction=correction)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    "x", [torch.tensor(2.0), torch.ones(1), torch.tensor([1.0, 2.0]), torch.ones(0), torch.ones(2, 0)]
)
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_variance_without_freedom(name: str, x: torch.Tensor) -> None:
    for device_input in (x, x * (1 + 1j)):
        expected = getattr(torch, name)(device_input, -1, correction=3)
        with (
            flroute.enable("reference", fallback="error"),
            pytest.warns(UserWarning, match=rf"{name}\(\): degrees"),
        ):
            made = getattr(torch, name)(device_input.to("fl"), -1, correction=3)
        torch.testing.assert_close(
            mapped(torch.Tensor.cpu, made), mapped(lambda t: t, expected), equal_nan=True
        )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64, torch.complex128])
@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, -1, -2.5, float("inf"), -float("inf")])
def test_norms(order: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype)
    x[0, 0] = 0
    agree("aten::linalg_vector_norm", x, order)
    agree("aten::linalg_vector_norm", x, order, [1], True)
    agree("aten::norm.ScalarOpt_dim", x, order, [0])
    if not dtype.is_complex:
        agree("aten::norm.ScalarOpt_dim_dtype", x, order, [0, 1], True, dtype=torch.float64)
    with pytest.raises(Unsupported):
        run("aten::linalg_vector_norm", torch.empty(0), float("-inf"))
