"""The largest and the smallest, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor.support import NUMBERS, REALS, Array, axes, count_over, reduce
from flroute.vendor import Unsupported, kernel


def extreme(ufunc: np.ufunc, x: Array, dim: Sequence[int] | None, keepdim: bool) -> Any:
    over = axes(dim, x.ndim)
    if count_over(x, over) == 0:
        raise Unsupported("the largest or smallest of no elements")
    return reduce(ufunc, x, axis=over, keepdims=keepdim)


@kernel("aten::amax", dtypes=REALS)
def amax(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return extreme(np.maximum, x, dim or None, keepdim)


@kernel("aten::amin", dtypes=REALS)
def amin(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return extreme(np.minimum, x, dim or None, keepdim)


@kernel("aten::max", dtypes=REALS)
def max_all(x: Array) -> Any:
    return extreme(np.maximum, x, None, False)


@kernel("aten::min", dtypes=REALS)
def min_all(x: Array) -> Any:
    return extreme(np.minimum, x, None, False)


def _position(find: Any, x: Array, dim: int | None, keepdim: bool) -> Any:
    """Where ``find`` (argmax or argmin) says: the first extreme, and a NaN is one for numpy too."""
    if dim is None:
        if x.size == 0:
            raise Unsupported("the position of an extreme of no elements")
        return np.full((1,) * x.ndim, find(x)) if keepdim else find(x)
    over = axes(dim, x.ndim)
    if not over:
        return np.int64(0)
    if x.shape[over[0]] == 0:
        raise Unsupported("the position of an extreme of no elements")
    return find(x, axis=over[0], keepdims=keepdim)


@kernel("aten::argmax", dtypes=NUMBERS)
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    return _position(np.argmax, x, dim, keepdim)


@kernel("aten::argmin", dtypes=NUMBERS)
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    return _position(np.argmin, x, dim, keepdim)


def _extreme_and_position(find: Any, x: Array, dim: int, keepdim: bool) -> tuple[Any, Any]:
    if x.ndim == 0:
        axes(dim, 0)
        return x.copy(), np.int64(0)
    indices = _position(find, x, dim, True)
    values = np.take_along_axis(x, indices, axis=dim)
    if keepdim:
        return values, indices
    return values.squeeze(dim), indices.squeeze(dim)


@kernel("aten::max.dim", dtypes=REALS)
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _extreme_and_position(np.argmax, x, dim, keepdim)


@kernel("aten::min.dim", dtypes=REALS)
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _extreme_and_position(np.argmin, x, dim, keepdim)


@kernel("aten::aminmax", dtypes=REALS)
def aminmax(x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    over = None if dim is None else [dim]
    if dim is None and keepdim:
        shape = (1,) * x.ndim
        return np.reshape(extreme(np.minimum, x, over, False), shape), np.reshape(
            extreme(np.maximum, x, over, False), shape
        )
    return extreme(np.minimum, x, over, keepdim), extreme(np.maximum, x, over, keepdim)
