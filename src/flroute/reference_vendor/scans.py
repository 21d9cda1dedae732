"""Cumulative sums, products, extremes and log-sums. Sums and products accumulate in double precision and round once."""

from __future__ import annotations

import numpy as np
import torch

from flroute.reference_vendor.asked_dtypes import casts_first, result_dtype
from flroute.reference_vendor.blocks import BLOCK
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import (
    COMPLEX,
    FLOATS,
    REALS,
    Array,
    Result,
    axes,
    quiet,
)
from flroute.vendor import kernel


@casts_first
def _accumulate(x: Array, ufunc: np.ufunc, dim: int, *, dtype: torch.dtype | None) -> Result:
    result = result_dtype(x, dtype)
    if x.ndim == 0:
        axes(dim, 1)
        return x.astype(result)
    (axis,) = axes(dim, x.ndim)
    wide = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(result.kind, result)
    return ufunc.accumulate(x, axis=axis, dtype=wide).astype(result, copy=False)


_RUN = 16
"""Elements whose sums so far come from one row of a matrix product."""
_TRIANGLE = np.triu(np.ones((_RUN, _RUN)))


def _sums_so_far(x: Array) -> Array | None:
    """The sums so far along a row of floats, in double precision but not one by one; ``None`` where they leave the finite.

    In runs: a product with a triangle of ones sums up inside of each, and what came before a run is added to all of it.
    An infinity would meet the zeros of the triangle.
    """
    out = empty(x.shape, x.dtype)
    whole = x.size - x.size % _RUN
    total = np.float64(0)
    for start in range(0, whole, BLOCK):
        some = slice(start, min(start + BLOCK, whole))
        runs = np.matmul(x[some].reshape(-1, _RUN).astype(np.float64), _TRIANGLE)
        before = np.add.accumulate(np.concatenate([[total], runs[:, -1]]))
        np.add(runs, before[:-1, None], out=out[some].reshape(-1, _RUN), casting="same_kind")
        total = before[-1]
    out[whole:] = total + np.add.accumulate(x[whole:], dtype=np.float64)
    return out if np.isfinite(total) else None


@kernel("aten::cumsum", dtypes=(*REALS, *COMPLEX))
@quiet
def cumsum(x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Result:
    if x.dtype.char == "f" and dtype in (None, torch.float32) and x.ndim == 1 and x.size >= 4096:
        axes(dim, 1)
        result = _sums_so_far(x)
        if result is not None:
            return result
    return _accumulate(x, np.add, dim, dtype=dtype)


@kernel("aten::cumprod", dtypes=(*REALS, *COMPLEX))
@quiet
def cumprod(x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Result:
    return _accumulate(x, np.multiply, dim, dtype=dtype)


# -- extremes -----------------------------------------------------------------------------------------


def _running_extreme(ufunc: np.ufunc, x: Array, values: Array, indices: Array, dim: int) -> None:
    """The extreme so far, and where it was met last; from the first NaN on, NaN, and where a NaN was met last."""
    if x.ndim == 0:
        values[...], indices[...] = x, 0
        return
    (axis,) = axes(dim, x.ndim)
    extreme = ufunc.accumulate(x, axis=axis)
    met = x == extreme
    if x.dtype.kind == "f":
        met |= np.isnan(x)
    place = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    values[...] = extreme
    indices[...] = np.maximum.accumulate(np.where(met, place, 0), axis=axis)


@kernel("aten::_cummax_helper", dtypes=REALS, mixed=True)
@quiet
def cummax_helper(x: Array, values: Array, indices: Array, dim: int) -> None:
    _running_extreme(np.maximum, x, values, indices, dim)


@kernel("aten::_cummin_helper", dtypes=REALS, mixed=True)
@quiet
def cummin_helper(x: Array, values: Array, indices: Array, dim: int) -> None:
    _running_extreme(np.minimum, x, values, indices, dim)


# -- log of sums of exponentials ----------------------------------------------------------------------


@kernel("aten::_logcumsumexp", dtypes=FLOATS)
@quiet
def logcumsumexp(x: Array, dim: int) -> Result:
    """log(exp(a) + exp(b)) = max + log1p(exp(min - max)), from element to element: nothing overflows."""
    if x.ndim == 0:
        axes(dim, 1)
        return x.copy()
    (axis,) = axes(dim, x.ndim)
    return np.logaddexp.accumulate(x, axis=axis, dtype=np.float64).astype(x.dtype, copy=False)
