from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

NUMBERS = [*FLOATS, *INTEGERS]
FULL = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@st.composite
def repeating(draw: st.DrawFn, shapes: Any, dtypes: Any = (*NUMBERS, torch.bool)) -> torch.Tensor:
    """Few different values."""
    x = draw(values(draw(shapes), draw(st.sampled_from(dtypes))))
    return x if x.dtype is torch.bool else x.clone().clamp_(0, 2).round()


@given(x=repeating(SHAPES), inverse=st.booleans(), counts=st.booleans())
def test_unique(x: torch.Tensor, inverse: bool, counts: bool) -> None:
    agree("aten::_unique2", x, True, inverse, counts)
    agree("aten::_unique", x, True, inverse)
    agree("aten::unique_consecutive", x, inverse, counts)


@given(x=repeating(FULL), data=st.data())
def test_unique_slices(x: torch.Tensor, data: Any) -> None:
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    agree("aten::unique_dim", x, dim, True, True, True)
    agree("aten::unique_consecutive", x, True, True, dim)


def test_every_nan_is_unique() -> None:
    x = torch.tensor([float("nan"), 2, float("nan"), 2, float("nan")])
    agree("aten::_unique2", x, True, True, True)
    agree("aten::unique_consecutive", x, True, True)


@given(data=st.data(), dtype=st.sampled_from(NUMBERS), invert=st.booleans())
def test_isin_and_equal(data: Any, dtype: torch.dtype, invert: bool) -> None:
    x, y = (data.draw(repeating(SHAPES, (dtype,))) for _ in "xy")
    agree("aten::isin.Tensor_Tensor", x, y.contiguous(), invert=invert)  # the host takes a view of y
    assert run("aten::equal", x, y) == torch.equal(x, y)
    assert run("aten::equal", x, x.clone()) is True


def test_isin_of_two_dtypes() -> None:
    x = torch.tensor([1, 2, 300])
    for y in (
        torch.tensor([1.5, 2.0]),
        torch.empty(0),
        torch.tensor([44, 2], dtype=torch.uint8),
        torch.tensor(2.0),
    ):
        agree("aten::isin.Tensor_Tensor", x, y)
        agree("aten::isin.Tensor_Tensor", y, x)


@given(data=st.data(), dtype=st.sampled_from(NUMBERS), right=st.booleans(), out_int32=st.booleans())
def test_places(data: Any, dtype: torch.dtype, right: bool, out_int32: bool) -> None:
    x = data.draw(repeating(FULL, (dtype,)))
    boundaries = data.draw(values((data.draw(st.integers(0, 6)),), dtype)).sort().values
    agree("aten::bucketize.Tensor", x, boundaries, right=right, out_int32=out_int32)
    agree("aten::searchsorted.Tensor", boundaries, x, right=right, out_int32=out_int32)
    unsorted = data.draw(values((*x.shape[:-1], 5), dtype))
    boundaries, sorter = unsorted.sort(dim=-1)
    agree("aten::searchsorted.Tensor", boundaries, x, right=right, side="right" if right else "left")
    agree("aten::searchsorted.Tensor", unsorted, x, right=right, sorter=sorter)


@pytest.mark.parametrize("number", [2, 2.5, -1, True, float("nan"), 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_the_place_of_a_number(number: float, dtype: torch.dtype) -> None:
    for right in (False, True):
        boundaries = torch.tensor([0.1, 1, 2, 2, 3]).to(dtype)
        agree("aten::searchsorted.Scalar", boundaries, number, right=right, out_int32=right)


@pytest.mark.parametrize(("shape", "dim"), [((0,), 0), ((5, 0, 5), 1), ((3, 0), -1)])
def test_unique_slices_of_nothing(shape: tuple[int, ...], dim: int) -> None:
    agree("aten::unique_dim", torch.zeros(shape), dim, True, True, True)
    agree("aten::unique_consecutive", torch.zeros(shape), True, True, dim)


def test_places_of_nan() -> None:
    x = torch.tensor([float("nan"), 1.0, float("inf")])
    for right in (False, True):
        agree("aten::bucketize.Tensor", x, torch.tensor([0.0, 1.0, 2.0]), right=right)
        agree("aten::searchsorted.Tensor", torch.tensor([[0.0, 1.0, float("nan")]]), x[None], right=right)
    with pytest.raises(Unsupported):
        run("aten::bucketize.Tensor", x, x)


@pytest.mark.parametrize("number", [2, 2.5, -1, 300, float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.uint8])
def test_a_number_among_others(number: float, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 2, 44]).to(dtype)
    if dtype is torch.uint8 and number in (
        -1,
        300,
    ):  # no uint8: the host takes it for the one it wraps around to
        with pytest.raises(Unsupported):
            run("aten::isin.Tensor_Scalar", x, number)
        return
    for invert in (False, True):
        agree("aten::isin.Tensor_Scalar", x, number, invert=invert)
        agree("aten::isin.Scalar_Tensor", number, x, invert=invert)
    for right in (False, True):
        agree("aten::bucketize.Scalar", number, x, right=right, out_int32=not right)
