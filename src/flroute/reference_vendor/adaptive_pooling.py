"""Adaptive pooling: the output's size is given, and the windows divide the image as evenly as can be.

Both the mean and the maximum of a window can be taken one dimension after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from flroute.reference_vendor.pooling import check_image, float_values, to_positions
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import FLOATS, Array, Result, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel


def _bins(image: int, output: int) -> list[slice]:
    """The windows along one dimension; they may overlap."""
    return [slice(i * image // output, -(-(i + 1) * image // output)) for i in range(output)]


def _output(x: Array, output_size: Sequence[int], spatial: int) -> tuple[int, ...]:
    check_image(x, spatial)
    output = tuple(output_size) if len(output_size) == spatial else tuple(output_size) * spatial
    if min(output) < 1:
        raise Unsupported(f"an output of size {output}")
    return output


def _first_axis(x: Array, output: Sequence[int]) -> int:
    return x.ndim - len(output)


# -- the average --------------------------------------------------------------------------------------


def _average(x: Array, output: tuple[int, ...]) -> Result:
    result = wide(x)
    for axis, size in enumerate(output, _first_axis(x, output)):
        before = (slice(None),) * axis
        parts = [result[(*before, window)] for window in _bins(x.shape[axis], size)]
        means = [accurate_sum(part, (axis,), True) / part.shape[axis] for part in parts]
        result = np.concatenate(means, axis=axis)
    return narrow(result, x)


def _average_backward(gradient: Array, x: Array, spatial: int) -> Result:
    check_image(x, spatial)
    outer = x.ndim - spatial
    if gradient.ndim != x.ndim or gradient.shape[:outer] != x.shape[:outer]:
        raise Unsupported(f"a gradient of {gradient.shape} for pooling over shape {x.shape}")
    result = wide(gradient)
    for axis in range(outer, x.ndim):
        before = (slice(None),) * axis
        shape = list(result.shape)
        shape[axis] = x.shape[axis]
        spread = np.zeros(shape)
        for i, window in enumerate(_bins(x.shape[axis], result.shape[axis])):
            length = window.stop - window.start
            spread[(*before, window)] += result[(*before, slice(i, i + 1))] / length
        result = spread
    return narrow(result, x)


@kernel("aten::_adaptive_avg_pool2d", dtypes=FLOATS)
@quiet
def adaptive_avg_pool2d(x: Array, output_size: Sequence[int]) -> Result:
    return _average(x, _output(x, output_size, 2))


@kernel("aten::_adaptive_avg_pool2d_backward", dtypes=FLOATS)
@quiet
def adaptive_avg_pool2d_backward(gradient: Array, x: Array) -> Result:
    return _average_backward(gradient, x, 2)


@kernel("aten::_adaptive_avg_pool3d", dtypes=FLOATS)
@quiet
def adaptive_avg_pool3d(x: Array, output_size: Sequence[int]) -> Result:
    return _average(x, _output(x, output_size, 3))


@kernel("aten::_adaptive_avg_pool3d_backward", dtypes=FLOATS)
@quiet
def adaptive_avg_pool3d_backward(gradient: Array, x: Array) -> Result:
    return _average_backward(gradient, x, 3)


# -- the largest --------------------------------------------------------------------------------------


def _winner(x: Array, axis: int) -> Result:
    """Which element along ``axis`` PyTorch's loop ends with: the last NaN, else the first of the largest."""
    first = np.argmax(x, axis, keepdims=True)
    odd = np.isnan(x)
    if not odd.any():
        return first
    last = x.shape[axis] - 1 - np.argmax(np.flip(odd, axis), axis, keepdims=True)
    return np.where(odd.any(axis, keepdims=True), last, first)


def _largest(x: Array, output: tuple[int, ...]) -> tuple[Array, Array]:
    outer = _first_axis(x, output)
    values = x
    positions = np.broadcast_to(np.arange(prod(x.shape[outer:])).reshape(x.shape[outer:]), x.shape)
    for axis in reversed(range(outer, x.ndim)):
        before = (slice(None),) * axis
        found = []
        for window in _bins(x.shape[axis], output[axis - outer]):
            part, where = values[(*before, window)], positions[(*before, window)]
            winner = _winner(part, axis)
            found.append((np.take_along_axis(part, winner, axis), np.take_along_axis(where, winner, axis)))
        values, positions = (np.concatenate(parts, axis) for parts in zip(*found, strict=True))
    return values, positions


@kernel("aten::adaptive_max_pool2d", dtypes=FLOATS)
def adaptive_max_pool2d(x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    return _largest(x, _output(x, output_size, 2))


@kernel("aten::adaptive_max_pool2d_backward", when=float_values)
def adaptive_max_pool2d_backward(gradient: Array, x: Array, indices: Array) -> Result:
    return to_positions(gradient, x, indices, 2)


@kernel("aten::adaptive_max_pool3d", dtypes=FLOATS)
def adaptive_max_pool3d(x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    return _largest(x, _output(x, output_size, 3))


@kernel("aten::adaptive_max_pool3d_backward", when=float_values)
def adaptive_max_pool3d_backward(gradient: Array, x: Array, indices: Array) -> Result:
    return to_positions(gradient, x, indices, 3)
