from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, LAYOUTS, agree, given, laid_out, run
from hypothesis import assume
from hypothesis import strategies as st

from flroute.vendor import Unsupported

SPATIAL = pytest.mark.parametrize("spatial", [2, 3])


@st.composite
def images(draw: st.DrawFn, spatial: int) -> torch.Tensor:
    torch.manual_seed(draw(st.integers(0, 1000)))
    batch = [draw(st.integers(1, 3))] if draw(st.booleans()) else []
    image = draw(st.lists(st.integers(3, 9 if spatial == 2 else 6), min_size=spatial, max_size=spatial))
    shape = (*batch, draw(st.integers(1, 3)), *image)
    return laid_out(torch.randn(shape, dtype=draw(st.sampled_from(FLOATS))), draw(LAYOUTS))


@st.composite
def windows(draw: st.DrawFn, spatial: int) -> tuple[list[int], list[int], list[int]]:
    """Kernel size, stride and padding: one number, or one per dimension."""
    lengths = st.sampled_from([1, spatial])

    def each(low: int, high: int, length: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=length, max_size=length))

    size = each(1, 3, draw(lengths))
    stride = each(1, 3, draw(lengths)) if draw(st.booleans()) else []
    return size, stride, [draw(st.integers(0, min(size) // 2))]


def _output(op: str, *args: Any) -> Any:
    """The host's answer; settings that leave no output are not of interest."""
    try:
        return getattr(torch.ops.aten, op)(*args)
    except RuntimeError:
        assume(False)


@SPATIAL
@given(data=st.data(), dilation=st.integers(1, 2), ceil_mode=st.booleans())
def test_max_pool(spatial: int, data: Any, dilation: int, ceil_mode: bool) -> None:
    x, window = data.draw(images(spatial)), data.draw(windows(spatial))
    op, rest = f"max_pool{spatial}d_with_indices", (*window, [dilation], ceil_mode)
    output, indices = _output(op, x, *rest)
    agree(f"aten::{op}", x, *rest)
    agree(f"aten::{op}_backward", torch.randn_like(output), x, *rest, indices)


@pytest.mark.parametrize("padding", [0, 1])
def test_max_pool_of_ties_nan_and_infinity(padding: int) -> None:
    inf, nan = float("inf"), float("nan")
    for image in (
        [[1.0, 1, 1], [1, 1, 1], [1, 1, 1]],
        [[nan, 1, 2], [nan, 3, nan], [0, 1, 2]],
        [[-inf] * 3] * 3,
    ):
        x = torch.tensor([image])
        agree("aten::max_pool2d_with_indices", x, [2, 2], [1, 1], [padding], [1], False)
        agree("aten::max_pool3d_with_indices", x[None], [1, 2, 2], [1], [0, padding, padding], [1], False)
        agree("aten::adaptive_max_pool2d", x, [2, 2])
        agree("aten::adaptive_max_pool3d", x[None], [1, 2, 2])


@SPATIAL
@given(data=st.data(), ceil_mode=st.booleans(), include=st.booleans(), divisor=st.sampled_from([None, 3, -2]))
def test_avg_pool(spatial: int, data: Any, ceil_mode: bool, include: bool, divisor: int | None) -> None:
    x, window = data.draw(images(spatial)), data.draw(windows(spatial))
    op, rest = f"avg_pool{spatial}d", (*window, ceil_mode, include, divisor)
    output = _output(op, x, *rest)
    agree(f"aten::{op}", x, *rest)
    agree(f"aten::{op}_backward", torch.randn_like(output), x, *rest)


@SPATIAL
@given(data=st.data())
def test_adaptive_pool(spatial: int, data: Any) -> None:
    x = data.draw(images(spatial))
    size = data.draw(st.lists(st.integers(1, 7), min_size=spatial, max_size=spatial))
    agree(f"aten::_adaptive_avg_pool{spatial}d", x, size)
    gradient = torch.randn(*x.shape[:-spatial], *size, dtype=x.dtype)
    agree(f"aten::_adaptive_avg_pool{spatial}d_backward", gradient, x)
    agree(f"aten::adaptive_max_pool{spatial}d", x, size)
    _, indices = getattr(torch.ops.aten, f"adaptive_max_pool{spatial}d")(x, size)
    agree(f"aten::adaptive_max_pool{spatial}d_backward", gradient, x, indices)


@SPATIAL
@given(data=st.data())
def test_fractional_max_pool(spatial: int, data: Any) -> None:
    x = data.draw(images(spatial))
    kernel = data.draw(st.lists(st.integers(1, 2), min_size=spatial, max_size=spatial))
    spare = 1 if spatial == 2 else 0  # in three dimensions, the host insists on a choice of places
    size = [data.draw(st.integers(1, n - k + spare)) for n, k in zip(x.shape[-spatial:], kernel, strict=True)]
    batch = 1 if x.ndim == spatial + 1 else x.shape[0]
    samples = torch.rand(batch, x.shape[-spatial - 1], spatial, dtype=x.dtype)
    op = f"fractional_max_pool{spatial}d"
    agree(f"aten::{op}", x, kernel, size, samples)
    output, indices = getattr(torch.ops.aten, op)(x, kernel, size, samples)
    agree(f"aten::{op}_backward", torch.randn_like(output), x, kernel, size, indices)


@SPATIAL
@given(data=st.data())
def test_max_unpool(spatial: int, data: Any) -> None:
    x = data.draw(images(spatial))
    op = getattr(torch.ops.aten, f"max_pool{spatial}d_with_indices")
    pooled, indices = op(x, [2] * spatial, [2] * spatial)
    size = list(x.shape[-spatial:])
    rest = ([2] * 3, [0] * 3) if spatial == 3 else ()
    agree(f"aten::max_unpool{spatial}d", pooled, indices, size, *rest)
    with pytest.raises(Unsupported):
        run(f"aten::max_unpool{spatial}d", pooled, indices + 10000, size, *rest)


@SPATIAL
def test_an_empty_batch(spatial: int) -> None:
    x, size = torch.ones(0, 2, *(4,) * spatial), [2] * spatial
    for op in (f"max_pool{spatial}d_with_indices", f"avg_pool{spatial}d", f"_adaptive_avg_pool{spatial}d"):
        agree(f"aten::{op}", x, size)
    agree(
        f"aten::avg_pool{spatial}d_backward", torch.ones(0, 2, *size), x, size, size, [0], False, True, None
    )
    agree(f"aten::_adaptive_avg_pool{spatial}d_backward", torch.ones(0, 2, *size), x)


@pytest.mark.parametrize(("size", "padding"), [([9], [0]), ([2], [2]), ([0], [0])])
def test_impossible_windows_are_left_to_the_host(size: list[int], padding: list[int]) -> None:
    with pytest.raises(Unsupported):
        run("aten::max_pool2d_with_indices", torch.ones(1, 4, 4), size, [], padding)
    with pytest.raises(Unsupported):
        run("aten::avg_pool3d", torch.ones(1, 4, 4, 4), size, [], padding)
