from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, LAYOUTS, agree, given, laid_out, run
from hypothesis import assume
from hypothesis import strategies as st

from flroute.vendor import Unsupported


@st.composite
def images(draw: st.DrawFn) -> torch.Tensor:
    torch.manual_seed(draw(st.integers(0, 1000)))
    batch = [draw(st.integers(1, 3))] if draw(st.booleans()) else []
    shape = (*batch, draw(st.integers(1, 3)), draw(st.integers(3, 9)), draw(st.integers(3, 9)))
    return laid_out(torch.randn(shape, dtype=draw(st.sampled_from(FLOATS))), draw(LAYOUTS))


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Kernel size, stride and padding."""
    size = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    stride = draw(st.lists(st.integers(1, 3), max_size=2))
    return size, stride, [draw(st.integers(0, min(size) // 2))]


def _output(op: str, *args: Any) -> Any:
    """The host's answer; settings that leave no output are not of interest."""
    try:
        return getattr(torch.ops.aten, op)(*args)
    except RuntimeError:
        assume(False)


@given(x=images(), window=windows(), dilation=st.integers(1, 2), ceil_mode=st.booleans())
def test_max_pool(x: torch.Tensor, window: Any, dilation: int, ceil_mode: bool) -> None:
    rest = (*window, [dilation], ceil_mode)
    output, indices = _output("max_pool2d_with_indices", x, *rest)
    agree("aten::max_pool2d_with_indices", x, *rest)
    agree("aten::max_pool2d_with_indices_backward", torch.randn_like(output), x, *rest, indices)


@pytest.mark.parametrize("padding", [0, 1])
def test_max_pool_of_ties_nan_and_infinity(padding: int) -> None:
    inf, nan = float("inf"), float("nan")
    for image in (
        [[1.0, 1, 1], [1, 1, 1], [1, 1, 1]],
        [[nan, 1, 2], [nan, 3, nan], [0, 1, 2]],
        [[-inf] * 3] * 3,
    ):
        agree("aten::max_pool2d_with_indices", torch.tensor([image]), [2, 2], [1, 1], [padding], [1], False)


@given(
    x=images(),
    window=windows(),
    ceil_mode=st.booleans(),
    include=st.booleans(),
    divisor=st.sampled_from([None, 3]),
)
def test_avg_pool(x: torch.Tensor, window: Any, ceil_mode: bool, include: bool, divisor: int | None) -> None:
    rest = (*window, ceil_mode, include, divisor)
    output = _output("avg_pool2d", x, *rest)
    agree("aten::avg_pool2d", x, *rest)
    agree("aten::avg_pool2d_backward", torch.randn_like(output), x, *rest)


@given(x=images(), height=st.integers(1, 7), width=st.integers(1, 7))
def test_adaptive_avg_pool(x: torch.Tensor, height: int, width: int) -> None:
    agree("aten::_adaptive_avg_pool2d", x, [height, width])
    gradient = torch.randn(*x.shape[:-2], height, width, dtype=x.dtype)
    agree("aten::_adaptive_avg_pool2d_backward", gradient, x)


@pytest.mark.parametrize(("size", "padding"), [([9], [0]), ([2], [2]), ([0], [0])])
def test_impossible_windows_are_left_to_the_host(size: list[int], padding: list[int]) -> None:
    with pytest.raises(Unsupported):
        run("aten::max_pool2d_with_indices", torch.ones(1, 4, 4), size, [], padding)
    with pytest.raises(Unsupported):
        run("aten::avg_pool2d", torch.ones(1, 4, 4), size, [], padding)
