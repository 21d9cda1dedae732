"""Least squares by singular values: the shortest ``x`` that minimises the length of ``a x - b``.

``x = V diag(1 / s) Uᴴ b`` over the singular values that count (Golub & Van Loan, Matrix Computations, section 5.5.1).
LAPACK's drivers find the same ``x`` on different ways; they differ in what else they return.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.linalg import INEXACT, adjoint, check_matrices, precise
from flroute.reference_vendor.support import Array, narrow, quiet
from flroute.vendor import Unsupported, kernel

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@kernel("aten::linalg_lstsq", dtypes=INEXACT)
@quiet
def linalg_lstsq(
    a: Array, b: Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Any, Any, Any, Any]:
    """Solution, squared residuals, rank and singular values; the host's own driver is gelsy."""
    driver = driver or "gelsy"
    vector = a.ndim == b.ndim + 1
    columns = b[..., None] if vector else b
    _check(a, columns, driver)
    u, s, vh = np.linalg.svd(precise(a), full_matrices=False)
    s = np.ascontiguousarray(s)
    rank = np.count_nonzero(s > _smallest(a, s, rcond), axis=-1)
    full_rank = bool(np.all(rank == a.shape[-1]))
    if driver == "gels" and not np.all(rank == min(a.shape[-2:])):
        raise Unsupported("a matrix without full rank for the driver gels")
    counts = np.arange(s.shape[-1]) < rank[..., None]
    inverse = np.where(counts, 1 / np.where(counts, s, 1), 0)
    x = adjoint(vh) @ (inverse[..., None] * (adjoint(u) @ precise(columns)))
    residuals = np.empty(0, s.dtype)
    if a.shape[-2] > a.shape[-1] and driver != "gelsy" and full_rank:
        residuals = np.array(np.square(np.absolute(precise(a) @ x - columns)).sum(axis=-2), order="C")
    nothing = np.empty(0, np.int64), np.empty(0, s.dtype)
    real = np.empty(0, a.dtype).real
    return (
        _in_columns(narrow(x, a), max(a.shape[-2:]), vector),
        narrow(residuals, real),
        nothing[0] if driver == "gels" else np.array(rank, np.int64, order="C"),
        narrow(s if driver in ("gelsd", "gelss") else nothing[1], real),
    )


def _smallest(a: Array, s: Array, rcond: float | None) -> Any:
    """The size up to which a singular value counts as zero."""
    epsilon = float(np.finfo(a.dtype).eps)
    ratio = epsilon * max(a.shape[-2:]) if rcond is None else rcond
    return np.max(s, axis=-1, keepdims=True, initial=0) * (epsilon if ratio < 0 else ratio)


def _check(a: Array, b: Array, driver: str) -> None:
    """PyTorch says itself what is wrong."""
    check_matrices(a)
    if driver not in _DRIVERS or a.shape[:-1] != b.shape[:-1] or a.size == 0 or b.size == 0:
        raise Unsupported(f"least squares of {a.shape} and {b.shape} with the driver {driver!r}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise Unsupported("least squares of NaN or infinity")


def _in_columns(x: Array, room: int, vector: bool) -> Array:
    """``x`` as LAPACK leaves it: column by column, each with room for the longer of a row and a column of ``a``."""
    *batch, size, columns = x.shape
    buffer = np.zeros((*batch, columns, room), x.dtype)
    buffer[..., :size] = x.swapaxes(-1, -2)
    shape = (*batch, size) if vector else (*batch, size, columns)
    strides = (*buffer.strides[:-2], x.itemsize, buffer.strides[-2])
    return np.ndarray(shape, x.dtype, buffer, strides=strides[:-1] if vector else strides)
