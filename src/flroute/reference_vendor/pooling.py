"""Pooling over images: (N, C, H, W), or (C, H, W) without a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import (
    FLOAT_TYPES,
    FLOATS,
    Array,
    Result,
    accurate_sum,
    check_indices,
    narrow,
    pair,
    quiet,
    wide,
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


def _axes(
    image: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Axis, Axis]:
    kernels = pair(kernel_size)
    sizes = zip(image, kernels, pair(stride, kernels), pair(padding), pair(dilation), strict=True)
    rows, columns = (_axis(*size, ceil_mode) for size in sizes)
    return rows, columns


def _axis(image: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Axis:
    if min(kernel, stride, dilation) < 1 or not 0 <= padding <= kernel // 2:
        raise Unsupported(f"a pool of size {kernel}, stride {stride}, padding {padding}, dilation {dilation}")
    steps = image + 2 * padding - dilation * (kernel - 1) - 1
    output = (-(-steps // stride) if ceil_mode else steps // stride) + 1
    if ceil_mode and (output - 1) * stride >= image + padding:
        output -= 1  # the last window must start inside the image or its left padding
    if output < 1:
        raise Unsupported(f"a pool of size {kernel} over {image} elements leaves none")
    return Axis(image, kernel, stride, padding, dilation, output)


def _check_image(x: Array) -> None:
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise Unsupported(f"pooling over shape {x.shape}")


def _pad(x: Array, rows: Axis, columns: Axis, value: float) -> Result:
    if x.shape[-2:] == (rows.padded, columns.padded):
        return x
    padded = np.full((*x.shape[:-2], rows.padded, columns.padded), value, x.dtype)
    padded[..., rows.interior, columns.interior] = x
    return padded


def _offsets(rows: Axis, columns: Axis) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(rows.kernel) for j in range(columns.kernel))


def _first_inside(axis: Axis) -> Result:
    """Which element of each window is the first to lie in the image."""
    return -(-np.maximum(-axis.starts, 0) // axis.dilation)


@kernel("aten::max_pool2d_with_indices", dtypes=FLOATS)
def max_pool2d(
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    _check_image(x)
    rows, columns = _axes(x.shape[-2:], kernel_size, stride, padding, dilation, ceil_mode)
    padded = _pad(x, rows, columns, -np.inf)
    largest = np.full((*x.shape[:-2], rows.output, columns.output), -np.inf, x.dtype)
    winner = np.empty(largest.shape, np.int32)  # which element of its window, counted row by row
    winner[...] = _first_inside(rows)[:, None] * columns.kernel + _first_inside(columns)
    for number, (i, j) in enumerate(_offsets(rows, columns)):
        candidate = padded[..., rows.meets(i), columns.meets(j)].copy()
        # A NaN wins, and a later one over an earlier: the rule of PyTorch's loop.
        better = np.greater(candidate, largest) | np.isnan(candidate)
        np.maximum(largest, candidate, out=largest)
        np.maximum(winner, np.multiply(better, number, dtype=np.int32), out=winner)
    return largest, _positions(winner, rows, columns)


def _positions(winner: Array, rows: Axis, columns: Axis) -> Result:
    """Positions in the flat image, from element numbers within each window."""
    corners = rows.starts[:, None] * columns.image + columns.starts
    steps = np.arange(rows.kernel)[:, None] * rows.dilation * columns.image
    steps = steps + np.arange(columns.kernel) * columns.dilation
    return corners + steps.reshape(-1)[winner]


def _float_values(gradient: torch.Tensor, *_: Any, **__: Any) -> bool | str:
    return gradient.dtype in FLOAT_TYPES


@kernel("aten::max_pool2d_with_indices_backward", when=_float_values)
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
    _check_image(x)
    image = x.shape[-2] * x.shape[-1]
    planes = x.size // image
    check_indices(indices, image, "max_pool2d backward: an index points outside of the image")
    flat = indices.reshape(planes, -1) + np.arange(0, x.size, image)[:, None]
    # bincount adds up in double precision, and overlapping windows need the sum.
    total = np.bincount(flat.ravel(), weights=gradient.ravel(), minlength=x.size)
    return narrow(total.reshape(x.shape), x)


def _divisors(rows: Axis, columns: Axis, include_padding: bool, override: int | None) -> Any:
    """By how much each window's sum is divided."""
    if override is not None:
        return override
    heights, widths = (_lengths(axis, include_padding) for axis in (rows, columns))
    return heights[:, None] * widths


def _lengths(axis: Axis, include_padding: bool) -> Result:
    starts, limit = axis.starts, axis.image + (axis.padding if include_padding else 0)
    ends = np.minimum(starts + axis.kernel, limit)
    return ends - (starts if include_padding else np.maximum(starts, 0))


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
    _check_image(x)
    rows, columns = _axes(x.shape[-2:], kernel_size, stride, padding, (1,), ceil_mode)
    padded = _pad(x, rows, columns, 0)
    total = np.zeros((*x.shape[:-2], rows.output, columns.output), x.dtype)
    for i, j in _offsets(rows, columns):
        total += padded[..., rows.meets(i), columns.meets(j)]
    total /= _divisors(rows, columns, count_include_pad, divisor_override)
    return total


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
    _check_image(x)
    rows, columns = _axes(x.shape[-2:], kernel_size, stride, padding, (1,), ceil_mode)
    share = narrow(gradient / _divisors(rows, columns, count_include_pad, divisor_override), gradient)
    padded = np.zeros((*x.shape[:-2], rows.padded, columns.padded), x.dtype)
    for i, j in _offsets(rows, columns):
        padded[..., rows.meets(i), columns.meets(j)] += share
    return np.ascontiguousarray(padded[..., rows.interior, columns.interior])


def _bins(image: int, output: int) -> list[slice]:
    """Adaptive pooling's windows along one dimension: as even as can be, and they may overlap."""
    return [slice(i * image // output, -(-(i + 1) * image // output)) for i in range(output)]


@kernel("aten::_adaptive_avg_pool2d", dtypes=FLOATS)
@quiet
def adaptive_avg_pool2d(x: Array, output_size: Sequence[int]) -> Result:
    _check_image(x)
    height, width = pair(output_size)
    if min(height, width) < 1:
        raise Unsupported(f"an output of size {height} x {width}")
    result = wide(x)
    for axis, output in ((x.ndim - 2, height), (x.ndim - 1, width)):
        before = (slice(None),) * axis
        parts = [result[(*before, window)] for window in _bins(x.shape[axis], output)]
        means = [accurate_sum(part, (axis,), True) / part.shape[axis] for part in parts]
        result = np.concatenate(means, axis=axis)
    return narrow(result, x)


@kernel("aten::_adaptive_avg_pool2d_backward", dtypes=FLOATS)
@quiet
def adaptive_avg_pool2d_backward(gradient: Array, x: Array) -> Result:
    _check_image(x)
    result = wide(gradient)
    for axis in (x.ndim - 2, x.ndim - 1):
        before = (slice(None),) * axis
        shape = list(result.shape)
        shape[axis] = x.shape[axis]
        spread = np.zeros(shape)
        for i, window in enumerate(_bins(x.shape[axis], result.shape[axis])):
            length = window.stop - window.start
            spread[(*before, window)] += result[(*before, slice(i, i + 1))] / length
        result = spread
    return narrow(result, x)
