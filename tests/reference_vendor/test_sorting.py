from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, FULL_SHAPES, INTEGERS, SHAPES, agree, given, overload, run, values
from hypothesis import assume
from hypothesis import strategies as st

from flroute.vendor import Unsupported

DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.float16]
NAN = float("nan")


@st.composite
def rows(draw: st.DrawFn, shapes: Any = FULL_SHAPES) -> tuple[torch.Tensor, int]:
    """A tensor with equal elements, NaN and both zeros among its own, and a dimension."""
    x = draw(values(draw(shapes), draw(st.sampled_from(DTYPES)), special=True))
    if draw(st.booleans()) and x.dtype is not torch.bool:
        x = x.clone().clamp_(0, 2).round()
    return x, draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))


@given(drawn=rows(SHAPES), descending=st.booleans())
def test_sort(drawn: tuple[torch.Tensor, int], descending: bool) -> None:
    x, dim = drawn
    agree("aten::sort.stable", x, stable=True, dim=dim, descending=descending)


def test_nan_is_above_everything_and_zeros_are_equal() -> None:
    for dtype in FLOATS:
        x = torch.tensor([NAN, 1, -float("inf"), -NAN, 0.0, -0.0, float("inf"), -1], dtype=dtype)
        for descending in (False, True):
            agree("aten::sort.stable", x, stable=True, descending=descending)
    agree("aten::sort.stable", torch.tensor([2**62, 1, -(2**63), 1, 2**63 - 1]), stable=True, descending=True)


def _same_values(op: str, x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Which of equal elements is named is left open; it has to be one of them."""
    made, indices = (torch.from_numpy(part) for part in map(_array, run(op, x, *args, **kwargs)))
    expected = overload(op)(x.contiguous(), *args, **kwargs)  # of repeated elements the host makes others
    torch.testing.assert_close(made, expected[0], rtol=0, atol=0, equal_nan=True)
    assert indices.dtype is torch.int64
    dim = kwargs["dim"]
    kept = kwargs.get("keepdim", True) or x.ndim == 0
    index, values = (indices, made) if kept else (indices.unsqueeze(dim), made.unsqueeze(dim))
    torch.testing.assert_close(x.gather(dim, index), values, rtol=0, atol=0, equal_nan=True)


def _array(part: Any) -> Any:
    return torch.as_tensor(part).numpy().copy()


@given(drawn=rows(), largest=st.booleans(), data=st.data())
def test_topk(drawn: tuple[torch.Tensor, int], largest: bool, data: Any) -> None:
    x, dim = drawn
    assume(x.dtype is not torch.bool)  # the host refuses it
    size = x.shape[dim] if x.ndim else 1
    _same_values("aten::topk", x, data.draw(st.integers(0 if x.ndim else 1, size)), dim=dim, largest=largest)
    with pytest.raises(Unsupported):
        run("aten::topk", x, size + 1, dim)


@given(drawn=rows(), keepdim=st.booleans(), data=st.data())
def test_order_statistics(drawn: tuple[torch.Tensor, int], keepdim: bool, data: Any) -> None:
    x, dim = drawn
    k = data.draw(st.integers(1, x.shape[dim] if x.ndim else 1))
    if x.dtype is not torch.bool:
        _same_values("aten::kthvalue", x, k, dim=dim, keepdim=keepdim)
        for name in ("median", "nanmedian"):
            _same_values(f"aten::{name}.dim", x, dim=dim, keepdim=keepdim)
            agree(f"aten::{name}", x.contiguous())
    if not x.dtype.is_floating_point or not x.isnan().any():  # the host's answer depends on where a NaN is
        agree("aten::mode", x.contiguous(), dim, keepdim)


def test_the_median_of_none_is_left_to_the_host() -> None:
    for op, args in (
        ("aten::median", ()),
        ("aten::median.dim", (0,)),
        ("aten::kthvalue", (1, 0)),
        ("aten::mode", (0,)),
    ):
        with pytest.raises(Unsupported):
            run(op, torch.empty(0, 2), *args)


def test_many_elements_stay_in_their_order() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
        agree(
            "aten::sort.stable",
            torch.randint(0, 50, (3, 4000), generator=generator).to(dtype),
            stable=True,
            dim=1,
        )
