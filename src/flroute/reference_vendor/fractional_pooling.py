"""Max pooling over windows at random places (Graham, "Fractional Max-Pooling", 2014), and the inverse of max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from flroute.reference_vendor.pooling import check_image, float_values, to_positions
from flroute.reference_vendor.support import Array, Result, pair, quiet
from flroute.vendor import Unsupported, kernel


def _starts(image: int, output: int, size: int, sample: Array) -> Result:
    """Where the windows of each plane begin: steps of ``alpha`` from a random start, the last at the end.

    In the dtype of the samples, as on the host: which side of an integer a product falls decides the answer.
    """
    last = np.full((len(sample), 1), image - size)
    if output == 1:
        return last
    alpha = sample.dtype.type(image - size) / sample.dtype.type(output - 1)
    steps = (np.arange(output - 1, dtype=sample.dtype) + sample[:, None]) * alpha
    first = (steps.astype(np.int64) - (sample[:, None] * alpha).astype(np.int64)).clip(0, image - size)
    return np.concatenate([first, last], axis=1)


def _fractional(
    x: Array, kernel_size: Sequence[int], output_size: Sequence[int], samples: Array, order: Sequence[int]
) -> tuple[Array, Array]:
    """``order[d]`` says which of a plane's samples places the windows along spatial dimension ``d``."""
    spatial = len(order)
    check_image(x, spatial)
    outer, image = x.shape[: x.ndim - spatial], x.shape[x.ndim - spatial :]
    planes = prod(outer)
    sizes = list(zip(image, output_size, kernel_size, strict=True))
    if any(size < 1 or output < 1 or output + size - 1 > whole for whole, output, size in sizes):
        raise Unsupported(f"windows of {tuple(kernel_size)} over {image} to {tuple(output_size)}")
    if samples.size != planes * spatial or samples.dtype != x.dtype:
        raise Unsupported(f"random samples {samples.dtype}{list(samples.shape)} for {x.dtype}{list(x.shape)}")
    drawn = samples.reshape(planes, spatial)
    corner = np.zeros((planes, *(1,) * spatial), np.int64)
    for dim, (whole, output, size) in enumerate(sizes):
        starts = _starts(whole, output, size, drawn[:, order[dim]])
        corner = corner + starts.reshape(planes, *(output if d == dim else 1 for d in range(spatial))) * prod(
            image[dim + 1 :]
        )
    flat = x.reshape(planes, prod(image))
    where = corner.reshape(planes, prod(output_size))
    largest, positions = np.full(where.shape, -np.inf, x.dtype), where
    for offset in product(*map(range, kernel_size)):
        candidate = where + sum(o * prod(image[dim + 1 :]) for dim, o in enumerate(offset))
        value = np.take_along_axis(flat, candidate, 1)
        better = np.greater(value, largest) | np.isnan(value)
        largest = np.where(better, value, largest)
        positions = np.where(better, candidate, positions)
    shape = (*outer, *output_size)
    return largest.reshape(shape), positions.reshape(shape)


@kernel("aten::fractional_max_pool2d", when=float_values)
def fractional_max_pool2d(
    x: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    return _fractional(x, pair(kernel_size), pair(output_size), random_samples, (1, 0))


@kernel("aten::fractional_max_pool2d_backward", when=float_values)
def fractional_max_pool2d_backward(
    gradient: Array, x: Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: Array
) -> Result:
    return to_positions(gradient, x, indices, 2)


@kernel("aten::fractional_max_pool3d", when=float_values)
def fractional_max_pool3d(
    x: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    if len(kernel_size) != 3 or len(output_size) != 3:
        raise Unsupported("one number for three dimensions")
    check_image(x, 3)
    if any(o + k > n for o, k, n in zip(output_size, kernel_size, x.shape[-3:], strict=True)):
        raise Unsupported(
            "an output that leaves the windows no choice, which the host takes in two dimensions only"
        )
    return _fractional(x, kernel_size, output_size, random_samples, (0, 1, 2))


@kernel("aten::fractional_max_pool3d_backward", when=float_values)
def fractional_max_pool3d_backward(
    gradient: Array, x: Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: Array
) -> Result:
    return to_positions(gradient, x, indices, 3)


# -- the inverse --------------------------------------------------------------------------------------


def _unpool(x: Array, indices: Array, output_size: Sequence[int]) -> Result:
    """Each value at the position it once came from, zeros elsewhere."""
    spatial = len(output_size)
    check_image(x, spatial)
    if x.ndim == 4 and not x.flags.c_contiguous and np.moveaxis(x, 1, -1).flags.c_contiguous:
        raise Unsupported(
            "channels last: PyTorch lays the result out likewise, and its shape rule does not say so"
        )
    image = prod(output_size)
    if indices.shape != x.shape or min(output_size) < 1:
        raise Unsupported(f"indices of {indices.shape} for {x.shape} into {tuple(output_size)}")
    if indices.size and (indices.min() < 0 or indices.max() >= image):
        raise Unsupported(f"an index points outside of an image of {tuple(output_size)}")
    outer = x.shape[: x.ndim - spatial]
    planes = prod(outer)
    result = np.zeros((planes, image), x.dtype)
    inner = prod(x.shape[x.ndim - spatial :])
    np.put_along_axis(result, indices.reshape(planes, inner), x.reshape(planes, inner), 1)
    return result.reshape(*outer, *output_size)


@kernel("aten::max_unpool2d", when=float_values)
@quiet
def max_unpool2d(x: Array, indices: Array, output_size: Sequence[int]) -> Result:
    return _unpool(x, indices, pair(output_size))


@kernel("aten::max_unpool3d", when=float_values)
@quiet
def max_unpool3d(
    x: Array, indices: Array, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Result:
    if len(output_size) != 3 or len(stride) != 3 or len(padding) != 3 or min(stride) < 1:
        raise Unsupported(
            f"strides {tuple(stride)}, padding {tuple(padding)}, an output of {tuple(output_size)}"
        )
    return _unpool(x, indices, output_size)
