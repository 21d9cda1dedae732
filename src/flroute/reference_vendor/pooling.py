"""Pooling with sliding windows over images of two or three dimensions: (N, C, *image), or (C, *image) without a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch

from flroute.reference_vendor.support import (
    FLOAT_TYPES,
    FLOATS,
    Array,
    Result,
    check_indices,
    narrow,
    quiet,
)
from flroute.vendor import Unsupported, kernel


@dataclass(frozen=True)
class Axis:
    """The windows along one dimension of an image."""

    image: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    output: int

    @property
    def padded(self) -> int:
        """Size of the image with all that the windows reach into, left and right."""
        reach = (self.output - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(reach, self.padding + self.image)

    def meets(self, offset: int) -> slice:
        """Positions, in the padded image, of the given element of every window."""
        start = offset * self.dilation
        return slice(start, start + (self.output - 1) * self.stride + 1, self.stride)

    @property
    def interior(self) -> slice:
        """Where, in the padded image, the image lies."""
        return slice(self.padding, self.padding + self.image)

    @property
    def starts(self) -> Result:
        """First position of each window, in the image's own coordinates."""
        return np.arange(self.output) * self.stride - self.padding

    @property
    def first_inside(self) -> Result:
        """Which element of each window is the first to lie in the image."""
        return -(-np.maximum(-self.starts, 0) // self.dilation)


Axes: TypeAlias = tuple[Axis, ...]


def _axes(
    spatial: int,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Axes:
    check_image(x, spatial)

    def each(values: Sequence[int]) -> Sequence[int]:
        return values if len(values) == spatial else tuple(values) * spatial

    image, kernels = x.shape[x.ndim - spatial :], each(kernel_size)
    sizes = zip(image, kernels, each(stride or kernels), each(padding), each(dilation), strict=True)
    return tuple(_axis(*size, ceil_mode) for size in sizes)


def _axis(image: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Axis:
    if min(kernel, stride, dilation) < 1 or not 0 <= padding <= (dilation * (kernel - 1) + 1) // 2:
        raise Unsupported(f"a pool of size {kernel}, stride {stride}, padding {padding}, dilation {dilation}")
    steps = image + 2 * padding - dilation * (kernel - 1) - 1
    output = (-(-steps // stride) if ceil_mode else steps // stride) + 1
    if ceil_mode and (output - 1) * stride >= image + padding:
        output -= 1  # the last window must start inside the image or its left padding
    if output < 1:
        raise Unsupported(f"a pool of size {kernel} over {image} elements leaves none")
    return Axis(image, kernel, stride, padding, dilation, output)


def check_image(x: Array, spatial: int) -> None:
    """Raise Unsupported for what is no image with ``spatial`` dimensions; a batch may be empty."""
    if x.ndim not in (spatial + 1, spatial + 2) or 0 in x.shape[x.ndim - spatial - 1 :]:
        raise Unsupported(f"pooling over shape {x.shape} in {spatial} dimensions")


def _outer(x: Array, axes: Axes) -> tuple[int, ...]:
    """Batch and channels."""
    return x.shape[: x.ndim - len(axes)]


def _results(x: Array, axes: Axes) -> tuple[int, ...]:
    return (*_outer(x, axes), *(axis.output for axis in axes))


def _interior(axes: Axes) -> tuple[Any, ...]:
    return (..., *(axis.interior for axis in axes))


def _padded(x: Array, axes: Axes, value: float) -> Result:
    shape = (*_outer(x, axes), *(axis.padded for axis in axes))
    if x.shape == shape:
        return x
    padded = np.full(shape, value, x.dtype)
    padded[_interior(axes)] = x
    return padded


def _elements(axes: Axes) -> Iterator[tuple[Any, ...]]:
    """For each element of the window: where, in the padded image, it lies as the window slides."""
    for offset in product(*(range(axis.kernel) for axis in axes)):
        yield (..., *(axis.meets(o) for axis, o in zip(axes, offset, strict=True)))


def _over_image(parts: Sequence[Array], sizes: Sequence[int]) -> Result:
    """Numbers per dimension, combined as positions in an image of ``sizes`` counted row by row."""
    total = np.asarray(parts[0])
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        total = total[..., None] * size + part
    return total


# -- the largest --------------------------------------------------------------------------------------


def _max_pool(x: Array, axes: Axes) -> tuple[Array, Array]:
    padded = _padded(x, axes, -np.inf)
    largest = np.full(_results(x, axes), -np.inf, x.dtype)
    winner = np.empty(largest.shape, np.int32)  # which element of its window, counted row by row
    winner[...] = _over_image([axis.first_inside for axis in axes], [axis.kernel for axis in axes])
    for number, where in enumerate(_elements(axes)):
        candidate = padded[where].copy()
        # A NaN wins, and a later one over an earlier: the rule of PyTorch's loop.
        better = np.greater(candidate, largest) | np.isnan(candidate)
        np.maximum(largest, candidate, out=largest)
        np.maximum(winner, np.multiply(better, number, dtype=np.int32), out=winner)
    return largest, _positions(winner, axes)


def _positions(winner: Array, axes: Axes) -> Result:
    """Positions in the flat image, from element numbers within each window."""
    sizes = [axis.image for axis in axes]
    corners = _over_image([axis.starts for axis in axes], sizes)
    steps = _over_image([np.arange(axis.kernel) * axis.dilation for axis in axes], sizes)
    return corners + steps.reshape(-1)[winner]


def to_positions(gradient: Array, x: Array, indices: Array, spatial: int) -> Result:
    """The gradient of a maximum: each value goes to the position of the flat image it came from.

    Raises:
        IndexError: an index points outside of the image.
        Unsupported: shapes that do not belong together.
    """
    check_image(x, spatial)
    outer = x.ndim - spatial
    if gradient.shape != indices.shape or gradient.shape[:outer] != x.shape[:outer]:
        raise Unsupported(f"a gradient of {gradient.shape} with indices of {indices.shape} for {x.shape}")
    image = prod(x.shape[outer:])
    check_indices(indices, image, "the backward of a max pool: an index points outside of the image")
    flat = indices.reshape(x.size // image, prod(indices.shape[outer:]))
    flat = flat + np.arange(0, x.size, image)[:, None]
    # bincount adds up in double precision, and overlapping windows need the sum.
    total = np.bincount(flat.ravel(), weights=gradient.ravel(), minlength=x.size)
    return narrow(total.reshape(x.shape), x)


def float_values(gradient: torch.Tensor, *_: Any, **__: Any) -> bool | str:
    """For ops on float values and indices."""
    return gradient.dtype in FLOAT_TYPES or f"values of {gradient.dtype}"


@kernel("aten::max_pool2d_with_indices", dtypes=FLOATS)
def max_pool2d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    return _max_pool(x, _axes(2, x, kernel_size, stride, padding, dilation, ceil_mode))


@kernel("aten::max_pool2d_with_indices_backward", when=float_values)
def max_pool2d_backward(
    gradient: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Result:
    return to_positions(gradient, x, indices, 2)


@kernel("aten::max_pool3d_with_indices", dtypes=FLOATS)
def max_pool3d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    return _max_pool(x, _axes(3, x, kernel_size, stride, padding, dilation, ceil_mode))


@kernel("aten::max_pool3d_with_indices_backward", when=float_values)
def max_pool3d_backward(
    gradient: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Result:
    return to_positions(gradient, x, indices, 3)


# -- the average --------------------------------------------------------------------------------------


def _divisors(axes: Axes, include_padding: bool, override: int | None) -> Any:
    """By how much each window's sum is divided.

    Raises:
        Unsupported: by zero.
    """
    if override == 0:
        raise Unsupported("a divisor of zero")
    if override is not None:
        return override
    return reduce(np.multiply.outer, (_lengths(axis, include_padding) for axis in axes))


def _lengths(axis: Axis, include_padding: bool) -> Result:
    starts, limit = axis.starts, axis.image + axis.padding
    ends = np.minimum(starts + axis.kernel, limit)
    if include_padding:
        return ends - starts
    return np.minimum(ends, axis.image) - np.maximum(starts, 0)


def _avg_pool(x: Array, axes: Axes, include_padding: bool, override: int | None) -> Result:
    padded = _padded(x, axes, 0)
    total = np.zeros(_results(x, axes), x.dtype)
    for where in _elements(axes):
        total += padded[where]
    total /= _divisors(axes, include_padding, override)
    return total


def _avg_pool_backward(
    gradient: Array, x: Array, axes: Axes, include_padding: bool, override: int | None
) -> Result:
    if gradient.shape != _results(x, axes):
        raise Unsupported(f"a gradient of {gradient.shape} for pooling over shape {x.shape}")
    share = narrow(gradient / _divisors(axes, include_padding, override), gradient)
    padded = np.zeros((*_outer(x, axes), *(axis.padded for axis in axes)), x.dtype)
    for where in _elements(axes):
        padded[where] += share
    return np.ascontiguousarray(padded[_interior(axes)])


@kernel("aten::avg_pool2d", dtypes=FLOATS)
@quiet
def avg_pool2d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Result:
    axes = _axes(2, x, kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool(x, axes, count_include_pad, divisor_override)


@kernel("aten::avg_pool2d_backward", dtypes=FLOATS)
@quiet
def avg_pool2d_backward(
    gradient: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Result:
    axes = _axes(2, x, kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool_backward(gradient, x, axes, count_include_pad, divisor_override)


@kernel("aten::avg_pool3d", dtypes=FLOATS)
@quiet
def avg_pool3d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Result:
    axes = _axes(3, x, kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool(x, axes, count_include_pad, divisor_override)


@kernel("aten::avg_pool3d_backward", dtypes=FLOATS)
@quiet
def avg_pool3d_backward(
    gradient: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Result:
    axes = _axes(3, x, kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool_backward(gradient, x, axes, count_include_pad, divisor_override)
