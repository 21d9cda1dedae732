"""Sums, means, products, truths and counts. Sums accumulate in double precision and round once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.asked_dtypes import casts_first, result_dtype
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import (
    COMPLEX,
    FLOATS,
    REALS,
    Array,
    axes,
    count_over,
    quiet,
    reduce,
    wide,
    without,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::sum", dtypes=(*REALS, *COMPLEX))
def sum_all(x: Array, *, dtype: torch.dtype | None = None) -> Any:
    return sum_dim(x, None, dtype=dtype)


@kernel("aten::sum.dim_IntList", dtypes=(*REALS, *COMPLEX))
@quiet
@casts_first
def sum_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    result = result_dtype(x, dtype)
    over = axes(dim, x.ndim)
    if result.kind in "fc":
        return accurate_sum(x, over, keepdim).astype(result)
    return reduce(np.add, x, axis=over, dtype=result, keepdims=keepdim)


@kernel("aten::mean", dtypes=(*REALS, *COMPLEX))
def mean_all(x: Array, *, dtype: torch.dtype | None = None) -> Any:
    return mean_dim(x, None, dtype=dtype)


@kernel("aten::mean.dim", dtypes=(*REALS, *COMPLEX))
@quiet
@casts_first
def mean_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if x.dtype.kind not in "fc" and dtype is None:
        raise Unsupported(f"the mean of {x.dtype}")
    over, result = axes(dim, x.ndim), result_dtype(x, dtype)
    total = accurate_sum(x, over, keepdim)
    return np.true_divide(total, count_over(x, over)).astype(result)


@kernel("aten::nansum", dtypes=REALS)
@quiet
@casts_first
def nansum(
    x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    return sum_dim(without(np.isnan(x), x) if x.dtype.kind == "f" else x, dim, keepdim, dtype=dtype)


@kernel("aten::prod", dtypes=(*REALS, *COMPLEX))
@quiet
def prod_all(x: Array, *, dtype: torch.dtype | None = None) -> Any:
    return _product(x, tuple(range(x.ndim)), False, dtype=dtype)


@kernel("aten::prod.dim_int", dtypes=(*REALS, *COMPLEX))
@quiet
def prod_dim(x: Array, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return _product(x, axes([dim], x.ndim), keepdim, dtype=dtype)


@casts_first
def _product(x: Array, over: tuple[int, ...], keepdim: bool, *, dtype: torch.dtype | None) -> Any:
    result = result_dtype(x, dtype)
    exact = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(result.kind, result)
    return np.asarray(reduce(np.multiply, x, axis=over, dtype=exact, keepdims=keepdim)).astype(
        result, copy=False
    )


@kernel("aten::logsumexp", dtypes=FLOATS)
@quiet
def logsumexp(x: Array, dim: Sequence[int], keepdim: bool = False) -> Any:
    """max + log(sum(exp(x - max))): nothing overflows."""
    if not dim and x.ndim:
        raise Unsupported("logsumexp over no dimension")
    over = axes(dim, x.ndim)
    if count_over(x, over) == 0:
        return np.log(accurate_sum(x, over, keepdim)).astype(x.dtype)
    top = wide(reduce(np.maximum, x, axis=over, keepdims=True))
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(accurate_sum(np.exp(wide(x) - top), over, True)) + top
    return (total if keepdim else total.squeeze(over)).astype(x.dtype)


@kernel("aten::count_nonzero.dim_IntList", dtypes=(*REALS, *COMPLEX))
def count_nonzero(x: Array, dim: Sequence[int]) -> Any:
    return reduce(np.add, x != 0, axis=axes(dim, x.ndim), dtype=np.int64)


# -- truths: of a uint8 tensor they are uint8, for PyTorch's own history ----------------------------------


def _truth(ufunc: np.ufunc, x: Array, over: tuple[int, ...], keepdim: bool = False) -> Any:
    answer = reduce(ufunc, x, axis=over, keepdims=keepdim)
    return np.asarray(answer, x.dtype if x.dtype == np.uint8 else bool)


@kernel("aten::any", dtypes=(*REALS, *COMPLEX))
def any_all(x: Array) -> Any:
    return _truth(np.logical_or, x, axes(None, x.ndim))


@kernel("aten::any.dim", dtypes=(*REALS, *COMPLEX))
def any_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return _truth(np.logical_or, x, axes(dim, x.ndim), keepdim)


@kernel("aten::any.dims", dtypes=(*REALS, *COMPLEX))
def any_dims(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    over = axes(None, x.ndim) if dim is None else axes(dim, x.ndim) if dim else ()
    return _truth(np.logical_or, x, over, keepdim)


@kernel("aten::all", dtypes=(*REALS, *COMPLEX))
def all_all(x: Array) -> Any:
    return _truth(np.logical_and, x, axes(None, x.ndim))


@kernel("aten::all.dim", dtypes=(*REALS, *COMPLEX))
def all_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return _truth(np.logical_and, x, axes(dim, x.ndim), keepdim)


@kernel("aten::all.dims", dtypes=(*REALS, *COMPLEX))
def all_dims(x: Array, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    over = axes(None, x.ndim) if dim is None else axes(dim, x.ndim) if dim else ()
    return _truth(np.logical_and, x, over, keepdim)
