"""Reflection and replication padding in one to three dimensions.

Each padded dimension is an index into the image's own, so padding takes elements, and its gradient adds up what was
taken from each. A batch is optional: (N, C, *image) or (C, *image).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flroute.reference_vendor.sums import sum_by_index
from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, Result, narrow, quiet
from flroute.vendor import Unsupported, kernel

Source = Callable[[int, int, int], Result]


def _reflected(size: int, left: int, right: int) -> Result:
    """Which element of ``size`` each of the padded ones shows, mirrored at the first and the last."""
    if max(left, right) >= size:
        raise Unsupported(f"a reflection of {max(left, right)} in {size} elements")
    last = size - 1
    return last - np.abs(last - np.abs(np.arange(-left, size + right)))


def _replicated(size: int, left: int, right: int) -> Result:
    """Which element of ``size`` each of the padded ones shows; outside of the image, the nearest."""
    return np.clip(np.arange(-left, size + right), 0, size - 1)


def _indices(x: Array, padding: Sequence[int], source: Source) -> dict[int, Result]:
    """By dimension: the index that pads it. ``padding`` starts with the last dimension."""
    spatial = len(padding) // 2
    if x.ndim not in (spatial + 1, spatial + 2) or 0 in x.shape[-spatial - 1 :]:
        raise Unsupported(f"padding of shape {x.shape} by {list(padding)}")
    found = {}
    for number in range(spatial):
        dim = x.ndim - 1 - number
        left, right = padding[2 * number : 2 * number + 2]
        if x.shape[dim] + left + right < 1:
            raise Unsupported(f"padding of {x.shape[dim]} elements by {left} and {right} leaves none")
        found[dim] = source(x.shape[dim], left, right)
    return found


def _pad(x: Array, padding: Sequence[int], source: Source) -> Result:
    result = x
    for dim, index in _indices(x, padding, source).items():
        result = np.take(result, index, axis=dim)
    return result


def _pad_backward(gradient: Array, x: Array, padding: Sequence[int], source: Source) -> Result:
    indices = _indices(x, padding, source)
    padded = tuple(len(indices[dim]) if dim in indices else size for dim, size in enumerate(x.shape))
    if gradient.shape != padded:
        raise Unsupported(f"a gradient of {gradient.shape} for {x.shape} padded by {list(padding)}")
    result = gradient
    for dim, index in indices.items():
        result = sum_by_index(result, index, x.shape[dim], dim)
    return narrow(result, x)


@kernel(
    "aten::reflection_pad1d",
    "aten::reflection_pad2d",
    "aten::reflection_pad3d",
    dtypes=(*FLOATS, *COMPLEX),
)
def reflection_pad(x: Array, padding: Sequence[int]) -> Result:
    return _pad(x, padding, _reflected)


@kernel(
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    dtypes=(*FLOATS, *COMPLEX),
)
@quiet
def reflection_pad_backward(gradient: Array, x: Array, padding: Sequence[int]) -> Result:
    return _pad_backward(gradient, x, padding, _reflected)


@kernel(
    "aten::replication_pad1d",
    "aten::replication_pad2d",
    "aten::replication_pad3d",
    dtypes=(*FLOATS, *COMPLEX),
)
def replication_pad(x: Array, padding: Sequence[int]) -> Result:
    return _pad(x, padding, _replicated)


@kernel(
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
    dtypes=(*FLOATS, *COMPLEX),
)
@quiet
def replication_pad_backward(gradient: Array, x: Array, padding: Sequence[int]) -> Result:
    return _pad_backward(gradient, x, padding, _replicated)
