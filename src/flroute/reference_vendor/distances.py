"""Distances between all points of two sets (``cdist``) or of one (``pdist``), in the p-norm.

Differences are taken in the input's precision, as on the host; what follows is computed in double and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flroute.reference_vendor.norms import norm_over
from flroute.reference_vendor.support import FLOATS, Array, narrow, quiet
from flroute.vendor import Unsupported, kernel

_MOST_DIFFERENCES = 2**18
"""Coordinates of differences held at a time."""


def _blocks(x: Array, y: Array) -> Iterator[tuple[slice, Array]]:
    """Some points of ``x`` at a time, and their differences to every point of ``y``."""
    width = math.prod(x.shape[:-2]) * y.shape[-2] * x.shape[-1]
    step = max(1, _MOST_DIFFERENCES // max(width, 1))
    for start in range(0, x.shape[-2], step):
        rows = slice(start, start + step)
        yield rows, x[..., rows, None, :] - y[..., None, :, :]


def _distances(x: Array, y: Array, p: float) -> Array:
    if p < 0:
        raise Unsupported(f"a distance of order {p}")
    result = np.zeros((*x.shape[:-1], y.shape[-2]), x.dtype)
    if x.shape[-1]:
        for rows, difference in _blocks(x, y):
            result[..., rows, :] = norm_over(difference, p, (difference.ndim - 1,), False)
    return result


@kernel("aten::_cdist_forward", dtypes=FLOATS)
@quiet
def cdist(x: Array, y: Array, p: float, compute_mode: int | None) -> Any:
    """``compute_mode`` chooses whether the host may use a matrix product, which is faster and less accurate."""
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise Unsupported(f"distances of points of shape {x.shape} and {y.shape}")
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (np.broadcast_to(points, (*batch, *points.shape[-2:])) for points in (x, y))
    return _distances(x, y, p)


def _gradient(grad: Array, x: Array, y: Array, p: float, distance: Array) -> Array:
    """Of ``d = (sum |x - y|^p)^(1/p)`` by ``x``: ``sign(x - y) (|x - y| / d)^(p - 1)``, and 0 where ``d`` is 0."""
    result = np.zeros(x.shape, np.float64)
    if p == 0:
        return narrow(result, x)  # type: ignore[no-any-return]
    for rows, difference in _blocks(x, y):
        of_rows, upstream = distance[..., rows, :, None], grad[..., rows, :, None]
        size, sign = np.absolute(difference), np.sign(difference)
        if math.isinf(p):
            slope = np.where(size == of_rows, sign, 0).astype(np.float64)
        elif p == 1:
            slope = sign.astype(np.float64)
        else:
            slope = sign * np.power(np.true_divide(size, of_rows, dtype=np.float64), p - 1)
            slope = np.where((of_rows == 0) | (size == 0), 0, slope)
        result[..., rows, :] = np.sum(slope * upstream, axis=-2)
    return narrow(result, x)  # type: ignore[no-any-return]


@kernel("aten::_cdist_backward", dtypes=FLOATS)
@quiet
def cdist_backward(grad: Array, x: Array, y: Array, p: float, distance: Array) -> Any:
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if grad.shape != (*batch, x.shape[-2], y.shape[-2]) or distance.shape != grad.shape:
        raise Unsupported(f"gradients of shape {grad.shape} for points of shape {x.shape} and {y.shape}")
    if not grad.size:
        return np.zeros(x.shape, x.dtype)
    x, y = (np.broadcast_to(points, (*batch, *points.shape[-2:])) for points in (x, y))
    return _gradient(grad, x, y, p, distance)


@kernel("aten::_pdist_forward", dtypes=FLOATS)
@quiet
def pdist(x: Array, p: float = 2.0) -> Any:
    if x.ndim != 2:
        raise Unsupported(f"pdist of shape {x.shape}")
    return _distances(x, x, p)[np.triu_indices(len(x), 1)]


@kernel("aten::_pdist_backward", dtypes=FLOATS)
@quiet
def pdist_backward(grad: Array, x: Array, p: float, distance: Array) -> Any:
    """Each pair counts for both of its points: ``cdist_backward`` with the symmetric matrices of all pairs."""
    full_grad, full_distance = (_symmetric(pairs, len(x)) for pairs in (grad, distance))
    return _gradient(full_grad, x, x, p, full_distance)


def _symmetric(pairs: Array, size: int) -> Array:
    full = np.zeros((size, size), pairs.dtype)
    full[np.triu_indices(size, 1)] = pairs
    return full + full.T
