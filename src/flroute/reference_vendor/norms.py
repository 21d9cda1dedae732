"""Norms of vectors, and what is a sum or product over a matrix's few numbers: trace, cross product, matrix exponential."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.linalg import INEXACT, check_square, precise
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import FLOATS, INTEGERS, REALS, Array, axes, narrow, quiet, reduce
from flroute.vendor import Unsupported, kernel, numpy_dtype

_INEXACT_TYPES = frozenset(getattr(torch, name) for name in INEXACT)

# -- norms --------------------------------------------------------------------------------------------


def norm_over(x: Array, order: float, over: tuple[int, ...], keepdim: bool) -> Any:
    """``(sum |x|^p)^(1/p)`` in double precision; its limits for infinite ``order``, the number of nonzeros for 0."""
    size = np.absolute(x)
    if math.isinf(order):
        if any(size.shape[dim] == 0 for dim in over) or (not size.size and not over):
            raise Unsupported("the largest or smallest of no elements")
        extreme = np.maximum if order > 0 else np.minimum
        return np.asarray(reduce(extreme, size, axis=over, keepdims=keepdim), np.float64)
    if order == 0:
        return np.asarray(accurate_sum(size != 0, over, keepdim))
    if order == 1:
        return np.asarray(accurate_sum(size, over, keepdim))
    wide = size.astype(np.float64, copy=False)
    if order == 2:
        return np.sqrt(np.asarray(accurate_sum(np.square(wide), over, keepdim)))
    return np.power(np.asarray(accurate_sum(np.power(wide, order), over, keepdim)), 1 / order)


@kernel("aten::linalg_vector_norm", dtypes=INEXACT)
@quiet
def vector_norm(
    x: Array,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if isinstance(ord, complex):
        raise Unsupported(f"a norm of order {ord}")
    if dtype is not None:
        if dtype not in _INEXACT_TYPES or (x.dtype.kind == "c") != dtype.is_complex:
            raise Unsupported(f"a norm of {x.dtype} in {dtype}")
        x = x.astype(numpy_dtype(dtype), copy=False)
    return norm_over(x, ord, axes(dim, x.ndim), keepdim).astype(x.real.dtype)


@kernel("aten::norm.ScalarOpt_dim", dtypes=INEXACT)
def norm_dim(x: Array, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Any:
    return vector_norm(x, 2 if p is None else p, dim or None, keepdim)


@kernel("aten::norm.ScalarOpt_dim_dtype", dtypes=INEXACT)
def norm_dim_in_dtype(
    x: Array, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype
) -> Any:
    return vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


@kernel("aten::norm.Scalar", dtypes=INEXACT)
def norm_all(x: Array, p: float = 2) -> Any:
    return vector_norm(x, p)


@kernel("aten::renorm", dtypes=INEXACT)
@quiet
def renorm(x: Array, p: float, dim: int, maxnorm: float) -> Any:
    """Each slice along ``dim`` scaled to a norm of ``maxnorm`` where its own is larger."""
    if x.ndim < 2 or isinstance(p, complex) or p <= 0 or isinstance(maxnorm, complex) or maxnorm < 0:
        raise Unsupported(f"renorm of shape {x.shape} with p={p} and maxnorm={maxnorm}")
    (axis,) = axes(dim, x.ndim)
    norms = norm_over(x, p, tuple(d for d in range(x.ndim) if d != axis), True)
    factor = np.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1)
    return narrow(x * factor, x)


# -- products over few numbers ------------------------------------------------------------------------


@kernel("aten::trace", dtypes=(*REALS, "complex64", "complex128"))
@quiet
def trace(x: Array) -> Any:
    if x.ndim != 2:
        raise Unsupported(f"the trace of shape {x.shape}")
    diagonal = np.diagonal(x)
    if x.dtype.kind in "fc":
        return narrow(np.sum(precise(diagonal)), x)
    return np.sum(diagonal, dtype=np.int64)


@kernel("aten::linalg_cross", dtypes=(*INEXACT, *INTEGERS))
@quiet
def cross(x: Array, y: Array, *, dim: int = -1) -> Any:
    if x.ndim != y.ndim or not x.ndim:
        raise Unsupported(f"the cross product of shapes {x.shape} and {y.shape}")
    (axis,) = axes(dim, x.ndim)
    if x.shape[axis] != 3 or y.shape[axis] != 3:
        raise Unsupported(f"the cross product along {dim} of shapes {x.shape} and {y.shape}")
    (x0, x1, x2), (y0, y1, y2) = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    parts = [x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0]
    return np.stack(parts, axis=axis)


_PADE = [math.factorial(26 - k) // (math.factorial(k) * math.factorial(13 - k)) for k in range(14)]
_LARGEST_NORM = 5.371920351148152


@kernel("aten::linalg_matrix_exp", dtypes=(*FLOATS, "complex64", "complex128"))
@quiet
def matrix_exp(x: Array) -> Any:
    """Scaling and squaring with a Padé approximant of degree 13 (Higham, SIAM J. Matrix Anal. Appl. 26, 2005, algorithm 2.3).

    ``exp(a) = exp(a / 2**s) ** 2**s``, with the number of squarings ``s`` chosen for each matrix of the batch.
    """
    check_square(x)
    if not x.size:
        return x.copy()
    a = precise(x)
    norm = np.max(np.sum(np.absolute(a), axis=-2), axis=-1)
    if not np.isfinite(norm).all():
        raise Unsupported("the exponential of NaN or infinity")
    squarings = np.ceil(np.log2(np.maximum(norm / _LARGEST_NORM, 1))).astype(int)
    result = _exp_of_small(a / np.exp2(squarings)[..., None, None])
    for done in range(int(squarings.max())):
        result = np.where((squarings > done)[..., None, None], result @ result, result)
    return narrow(result, x)


def _exp_of_small(a: Array) -> Array:
    b, one = _PADE, np.eye(a.shape[-1])
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a2 @ a4
    odd = a @ (a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one)
    even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
    return np.linalg.solve(even - odd, even + odd)
