"""Sums, means, extremes and variances. Sums accumulate in double precision and round once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import (
    FLOATS,
    NUMBERS,
    REALS,
    Array,
    accurate_sum,
    axes,
    narrow,
    quiet,
    reduce,
    result_dtype,
    wide,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::sum", dtypes=REALS)
def sum_all(x: Array, *, dtype: torch.dtype | None = None) -> Any:
    return sum_dim(x, None, dtype=dtype)


@kernel("aten::sum.dim_IntList", dtypes=REALS)
@quiet
def sum_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    result = result_dtype(x, dtype)
    over = axes(dim, x.ndim)
    if result.kind == "f":
        return accurate_sum(x, over, keepdim).astype(result)
    return reduce(np.add, x, axis=over, dtype=result, keepdims=keepdim)


@kernel("aten::mean", dtypes=FLOATS)
def mean_all(x: Array, *, dtype: torch.dtype | None = None) -> Any:
    return mean_dim(x, None, dtype=dtype)


@kernel("aten::mean.dim", dtypes=FLOATS)
@quiet
def mean_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    over = axes(dim, x.ndim)
    total = accurate_sum(x, over, keepdim)
    return np.true_divide(total, _count(x, over)).astype(result_dtype(x, dtype))


def _count(x: Array, over: tuple[int, ...]) -> int:
    count = 1
    for dim in over:
        count *= x.shape[dim]
    return count


def _extreme(ufunc: np.ufunc, x: Array, dim: Sequence[int] | None, keepdim: bool) -> Any:
    over = axes(dim, x.ndim)
    if _count(x, over) == 0:
        raise Unsupported("the largest or smallest of no elements")
    return reduce(ufunc, x, axis=over, keepdims=keepdim)


@kernel("aten::amax", dtypes=REALS)
def amax(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(np.maximum, x, dim or None, keepdim)


@kernel("aten::amin", dtypes=REALS)
def amin(x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return _extreme(np.minimum, x, dim or None, keepdim)


@kernel("aten::max", dtypes=REALS)
def max_all(x: Array) -> Any:
    return _extreme(np.maximum, x, None, False)


@kernel("aten::min", dtypes=REALS)
def min_all(x: Array) -> Any:
    return _extreme(np.minimum, x, None, False)


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


# A uint8 tensor keeps its dtype in these two, for PyTorch's own history; it is left to the host.
_TRUTHS = tuple(name for name in REALS if name != "uint8")


@kernel("aten::any", dtypes=_TRUTHS)
def any_all(x: Array) -> Any:
    return reduce(np.logical_or, x, axis=None)


@kernel("aten::any.dim", dtypes=_TRUTHS)
def any_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return reduce(np.logical_or, x, axis=axes(dim, x.ndim), keepdims=keepdim)


@kernel("aten::all", dtypes=_TRUTHS)
def all_all(x: Array) -> Any:
    return reduce(np.logical_and, x, axis=None)


@kernel("aten::all.dim", dtypes=_TRUTHS)
def all_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return reduce(np.logical_and, x, axis=axes(dim, x.ndim), keepdims=keepdim)


def _moments(x: Array, dim: Sequence[int] | None, correction: float | None, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean, both in double precision."""
    over = axes(dim, x.ndim)
    count = _count(x, over)
    freedom = count - (1 if correction is None else correction)
    if freedom <= 0:
        raise Unsupported("no degrees of freedom are left")
    mean = accurate_sum(x, over, True) / count
    variance = accurate_sum(np.square(wide(x) - mean), over, keepdim) / freedom
    return variance, mean if keepdim else mean.squeeze(over)


@kernel("aten::var_mean.correction", dtypes=FLOATS)
@quiet
def var_mean(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    variance, mean = _moments(x, dim, correction, keepdim)
    return narrow(variance, x), narrow(mean, x)


@kernel("aten::var.correction", dtypes=FLOATS)
@quiet
def var(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return narrow(_moments(x, dim, correction, keepdim)[0], x)


@kernel("aten::std.correction", dtypes=FLOATS)
@quiet
def std(
    x: Array, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return narrow(np.sqrt(_moments(x, dim, correction, keepdim)[0]), x)
