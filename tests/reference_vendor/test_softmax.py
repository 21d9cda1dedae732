from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_forward_and_backward(name: str, data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    dim = data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    agree(f"aten::{name}", x, dim, False)
    output = torch.softmax(x, dim) if name == "_softmax" else torch.log_softmax(x, dim)
    agree(f"aten::{name}_backward_data", data.draw(values(tuple(x.shape), dtype)), output, dim, dtype)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_extremes(name: str) -> None:
    inf = float("inf")
    agree(
        f"aten::{name}",
        torch.tensor([[1e4, -1e4, 0], [-inf, 0, 1], [-inf, -inf, -inf], [inf, 0, 0], [float("nan"), 0, 1]]),
        1,
        False,
    )


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_a_row_that_is_minus_infinity_throughout(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    dim = data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    if x.ndim and x.shape[dim]:
        x.select(-1 if x.ndim == 1 else (dim + 1) % x.ndim, 0).fill_(-torch.inf) if x.numel() else None
    agree("aten::_safe_softmax", x, dim)


def test_a_gradient_of_another_dtype_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::_softmax_backward_data", torch.ones(2), torch.ones(2), 0, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_softmax_of_half_precision_may_be_asked_for_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(7, 30).to(dtype)
    expected = torch.ops.aten._safe_softmax(x, -1, torch.float32)
    with flroute.enable("reference", fallback="error", default_device=False):
        torch.testing.assert_close(
            torch.ops.aten._safe_softmax(x.to("fl"), -1, torch.float32).cpu(), expected
        )
