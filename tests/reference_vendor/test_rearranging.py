from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import EVERY, FLOATS, SHAPES, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_cat(data: Any, dtype: torch.dtype) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    axis = dim % len(shape)
    parts = [data.draw(values((*shape[:axis], n, *shape[axis + 1 :]), dtype)) for n in sizes]
    agree("aten::cat", parts, dim)
    agree("aten::cat", [torch.empty(0, dtype=dtype), *parts], dim)


@given(data=st.data(), dtype=st.sampled_from(EVERY), shape=SHAPES)
def test_repeat(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    repeats = data.draw(st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape) + 2))
    agree("aten::repeat", data.draw(values(shape, dtype)), repeats)
    with pytest.raises(Unsupported):
        run("aten::repeat", torch.ones(2, 2), [2])


@given(data=st.data(), dtype=st.sampled_from(EVERY), diagonal=st.integers(-3, 3))
def test_triangles_and_flips(data: Any, dtype: torch.dtype, diagonal: int) -> None:
    x = data.draw(values(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=4).map(tuple)), dtype))
    agree("aten::tril", x, diagonal)
    agree("aten::triu", x, diagonal)
    agree("aten::flip", x, data.draw(st.sampled_from([[], [0], [-1], [0, 1], [1, -x.ndim]])))


@given(
    data=st.data(), dtype=st.sampled_from(FLOATS), pad=st.lists(st.integers(-2, 3), min_size=4, max_size=4)
)
def test_constant_pad(data: Any, dtype: torch.dtype, pad: list[int]) -> None:
    x = data.draw(values((2, 4, 5), dtype))
    agree("aten::constant_pad_nd", x, pad, 1.5)
    agree("aten::constant_pad_nd", x, pad[:2])


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_rolls(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    shift = data.draw(st.integers(-7, 7))
    agree("aten::roll", x, [shift])
    if x.ndim:
        agree("aten::roll", x, [shift, 1], [0, -1])
        agree("aten::narrow_copy", x, -1, 0, x.shape[-1] // 2)
        agree("aten::narrow_copy", x, 0, -(x.shape[0] // 2), x.shape[0] // 2)


@pytest.mark.parametrize("length", [-1, 4])
def test_more_than_there_is_to_narrow_is_left_to_the_host(length: int) -> None:
    with pytest.raises(Unsupported):
        run("aten::narrow_copy", torch.ones(3), 0, 0, length)


@given(data=st.data(), dtype=st.sampled_from(EVERY), factor=st.integers(1, 3))
def test_pixels_and_channels(data: Any, dtype: torch.dtype, factor: int) -> None:
    batch = data.draw(st.sampled_from([(), (2,), (2, 1)]))
    agree("aten::pixel_shuffle", data.draw(values((*batch, 2 * factor**2, 2, 3), dtype)), factor)
    agree("aten::pixel_unshuffle", data.draw(values((*batch, 2, 2 * factor, 3 * factor), dtype)), factor)
    if dtype in FLOATS:
        agree("aten::channel_shuffle", data.draw(values((2, 2 * factor, 3, 2), dtype)), factor)


@given(repeats=st.lists(st.integers(0, 4), max_size=6), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_repeat_interleave(repeats: list[int], dtype: torch.dtype) -> None:
    agree("aten::repeat_interleave.Tensor", torch.tensor(repeats, dtype=dtype))
    agree("aten::repeat_interleave.Tensor", torch.tensor(repeats, dtype=dtype), output_size=sum(repeats))


def test_negative_repeats_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::repeat_interleave.Tensor", torch.tensor([1, -1]))


@given(data=st.data(), dtype=st.sampled_from(FLOATS), size=st.integers(1, 3), step=st.integers(1, 3))
def test_unfold_backward(data: Any, dtype: torch.dtype, size: int, step: int) -> None:
    shape = data.draw(st.lists(st.integers(3, 5), min_size=1, max_size=3).map(tuple))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    windows = torch.empty(shape).unfold(dim, size, step).shape
    agree("aten::unfold_backward", data.draw(values(tuple(windows), dtype)), list(shape), dim, size, step)
