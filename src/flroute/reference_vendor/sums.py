"""Sums that stay accurate, whatever the axis and however many the elements; of floats through BLAS, where that is faster."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flroute.reference_vendor.support import Array, Result, reduce

_add_up: Callable[..., Any] = np.add.reduce  # for numpy's stubs, keepdims is a literal


def accurate_sum(x: Array, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """Sum in double precision, whatever the axis; the result is a double.

    numpy sums pairwise along the fastest dimension only. Along the others it adds one by one, so there a sum of
    doubles is folded in pairs first; a sum of floats needs no more than a double to add up in.
    """
    if x.dtype.kind == "c":
        return reduce(np.add, x, axis=axis, dtype=np.complex128, keepdims=keepdims)
    over = tuple(range(x.ndim)) if axis is None else axis
    if x.dtype.char == "f" and x.size >= _MANY and over and x.flags.c_contiguous:
        total = _sum_by_pieces(x, over)
        if total is not None and np.isfinite(total).all():
            return _kept(total, x, over) if keepdims else total
    if x.dtype.char == "d" and axis is not None:
        for dim in axis:
            if x.strides[dim] != x.itemsize:
                x = _folded(x, dim)
    return reduce(np.add, x, axis=axis, dtype=np.float64, keepdims=keepdims)


def sum_of_rows(x: Array, precise: bool = False) -> Result:
    """The sum of each row of a row-major matrix, as a column; nothing may overflow.

    If ``precise``, longer rows add up in double precision: for sums that are results themselves.
    """
    rows, width = x.shape
    if x.dtype.char == "f" and width <= (_LONGEST_PIECE if precise else LONGEST_ROW):
        return np.matmul(x, ONES[:width])[:, None]
    size = _piece(width) if x.dtype.char == "f" else 0
    if size < _SHORT:
        return _add_up(x, 1, np.float64, None, True)
    pieces = np.matmul(x.reshape(-1, size), ONES[:size])
    return _add_up(pieces.reshape(rows, -1), 1, np.float64, None, True)


_MANY = 1 << 15
"""Elements from which on a product by ones is faster than numpy's own sum."""
_LONGEST_PIECE = 128
LONGEST_ROW = 4096
ONES = np.ones(LONGEST_ROW, np.float32)
ONES.flags.writeable = False


@functools.cache
def _piece(count: int) -> int:
    """The largest divisor of ``count`` that is short enough to add up in float32."""
    return next(size for size in range(min(count, _LONGEST_PIECE), 0, -1) if count % size == 0)


def _sum_by_pieces(x: Array, over: tuple[int, ...]) -> Any:
    """Sums of floats: BLAS adds up short pieces in float32, by many partial sums at once; their sums add up as doubles.

    ``None`` where the shape offers no pieces. Not for infinite results: a sum of a piece may overflow where the whole does not.
    """
    dims = {dim % x.ndim for dim in over}
    trailing = next((n for n in range(x.ndim) if x.ndim - 1 - n not in dims), x.ndim)
    if not trailing:
        return _sum_of_leading(x, dims)
    kept = x.shape[: x.ndim - trailing]
    count = math.prod(x.shape[x.ndim - trailing :])
    if not kept and _piece(count) < _SHORT:  # the whole: what is left over comes by itself
        flat = x.reshape(-1)
        whole = count - count % _LONGEST_PIECE
        return _sum_by_pieces(flat[:whole], (0,)) + np.add.reduce(flat[whole:], dtype=np.float64)
    size = _piece(count)
    if size < _SHORT:
        return None
    sums = np.matmul(x.reshape(-1, size), ONES[:size]).reshape(*kept, count // size)
    rest = tuple(dim for dim in dims if dim < len(kept))
    return reduce(np.add, sums, axis=(*rest, len(kept)), dtype=np.float64)


_SHORT = 16
"""Pieces of fewer elements cost more than they save."""


def _sum_of_leading(x: Array, dims: set[int]) -> Any:
    """Sums along the first dimensions only; ``None`` if others are among them."""
    leading = len(dims)
    kept = x.shape[leading:]
    count, width = math.prod(x.shape[:leading]), math.prod(kept)
    size = min(_piece(count), 64)
    if dims != set(range(leading)) or count % size or size < _SHORT or width < _SHORT:
        return None
    sums = np.matmul(ONES[:size], x.reshape(count // size, size, width))
    return np.add.reduce(sums, axis=0, dtype=np.float64).reshape(kept)


def _kept(total: Any, x: Array, over: tuple[int, ...]) -> Result:
    """``total`` with the dimensions it was summed over, of size 1."""
    dims = {dim % x.ndim for dim in over}
    return np.reshape(total, [1 if dim in dims else n for dim, n in enumerate(x.shape)])


def _folded(x: Array, dim: int) -> Array:
    """Add up one half of ``x`` along ``dim`` with the other, again and again, until little is left."""
    before = (slice(None),) * dim
    while (size := x.shape[dim]) > 4:
        half = size // 2
        folded = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        if size % 2:
            folded[(*before, slice(1))] += x[(*before, slice(size - 1, size))]
        x = folded
    return x


def sum_by_index(values: Array, index: Array, size: int, axis: int) -> Result:
    """What ``take(x, index, axis)`` sends back: the sum of ``values`` along ``axis`` over equal indices, in double precision.

    A sort brings equal indices side by side, so that a NaN stays with its own index and no loop is needed.
    """
    if np.any(index[1:] < index[:-1]):
        order = np.argsort(index, kind="stable")
        values, index = np.take(values, order, axis), index[order]
    shape = list(values.shape)
    shape[axis] = size
    total = np.zeros(shape, np.result_type(values.dtype, np.float64))
    if values.size:
        found, starts = np.unique(index, return_index=True)
        where: tuple[Any, ...] = (*(slice(None),) * (axis % values.ndim), found)
        total[where] = np.add.reduceat(values, starts, axis=axis, dtype=total.dtype)
    return total
