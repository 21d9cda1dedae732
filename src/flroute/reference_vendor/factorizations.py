"""Cholesky, QR, singular values and eigenvalues, on numpy's LAPACK. Single precision is computed in double and rounded once."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flroute.reference_vendor.linalg import (
    INEXACT,
    adjoint,
    check_info,
    check_matrices,
    check_square,
    precise,
    solve_triangular,
)
from flroute.reference_vendor.support import Array, narrow, quiet
from flroute.vendor import Unsupported, kernel


def _real(values: Array, like: Array) -> Array:
    """``values`` in the real type of ``like``."""
    return values.astype(like.real.dtype, copy=False)


# -- Cholesky -----------------------------------------------------------------------------------------


@kernel("aten::linalg_cholesky_ex", dtypes=INEXACT)
@quiet
def linalg_cholesky_ex(a: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Any, Any]:
    check_square(a)
    lower = adjoint(a) if upper else a
    try:
        factor, info = np.linalg.cholesky(precise(lower)), np.zeros(a.shape[:-2], np.int32)
    except np.linalg.LinAlgError:  # one of the batch is not positive definite
        factor, info = _cholesky_as_far_as_it_goes(precise(lower))
    check_info(info, check_errors, "the Cholesky decomposition")
    return narrow(adjoint(factor) if upper else factor, a), info


def _cholesky_as_far_as_it_goes(a: Array) -> tuple[Array, Array]:
    """The lower factor column by column, and per matrix 0 or the order of its first minor that is not positive."""
    factor, info = np.tril(a), np.zeros(a.shape[:-2], np.int32)
    for j in range(a.shape[-1]):
        diagonal = factor[..., j, j].real
        info[~(diagonal > 0) & (info == 0)] = j + 1
        root = np.where(info == 0, np.sqrt(np.abs(diagonal)), 1)
        column = np.where(info == 0, 1, 0)[..., None] * factor[..., j:, j] / root[..., None]
        factor[..., j:, j] = np.where((info == 0)[..., None], column, factor[..., j:, j])
        factor[..., j + 1 :, j + 1 :] -= np.tril(column[..., 1:, None] * np.conjugate(column[..., None, 1:]))
    return factor, info


@kernel("aten::cholesky", dtypes=INEXACT)
@quiet
def cholesky(x: Array, upper: bool = False) -> Any:
    return linalg_cholesky_ex(x, upper=upper, check_errors=True)[0]


def _cholesky_solve(factor: Array, b: Array, upper: bool) -> Array:
    """``x`` of ``L Lᴴ x = b``, or of ``Uᴴ U x = b``."""
    lower = adjoint(factor) if upper else factor
    return solve_triangular(adjoint(lower), solve_triangular(lower, b, upper=False), upper=True)


@kernel("aten::_cholesky_solve_helper", dtypes=INEXACT)
@quiet
def cholesky_solve(b: Array, factor: Array, upper: bool) -> Any:
    check_square(factor)
    return narrow(_cholesky_solve(factor, b, upper), b)


@kernel("aten::cholesky_inverse", dtypes=INEXACT)
@quiet
def cholesky_inverse(factor: Array, upper: bool = False) -> Any:
    check_square(factor)
    return narrow(_cholesky_solve(factor, np.eye(factor.shape[-1]), upper), factor)


# -- QR -----------------------------------------------------------------------------------------------


@kernel("aten::linalg_qr", dtypes=INEXACT)
@quiet
def linalg_qr(a: Array, mode: str = "reduced") -> tuple[Any, Any]:
    check_matrices(a)
    if mode == "r":
        return np.empty((0,), a.dtype), narrow(np.linalg.qr(precise(a), mode="r"), a)
    if mode not in ("reduced", "complete"):
        raise Unsupported(f"the mode {mode!r}")
    q, r = np.linalg.qr(precise(a), mode=mode)  # type: ignore[call-overload]
    return narrow(q, a), narrow(r, a)


@kernel("aten::geqrf", dtypes=INEXACT)
@quiet
def geqrf(x: Array) -> tuple[Any, Any]:
    """``R`` above, the Householder vectors below the diagonal, and the factors ``tau`` that make them reflections."""
    check_matrices(x)
    if not x.size:
        raise Unsupported("no elements, for which numpy keeps no layout")
    packed, tau = np.linalg.qr(precise(x), mode="raw")  # numpy hands out the transpose
    columns = np.array(
        packed, x.dtype, order="C"
    )  # column by column, as the host: PyTorch has no rule of its own
    return columns.swapaxes(-1, -2), narrow(tau, x)


def _reflect(vectors: Array, tau: Array, x: Array, forwards: bool, conjugate: bool = False) -> Array:
    """Apply ``H_1 ... H_k`` to a copy of ``x`` from the left, or with ``forwards`` ``H_k ... H_1``.

    ``H_i = 1 - tau_i v_i v_iᴴ``, where ``v_i`` has zeros above element ``i``, a one there, and below it column ``i`` of
    ``vectors``; ``conjugate`` takes ``H_iᴴ``.
    """
    result = np.array(precise(x))
    count = tau.shape[-1]
    for i in range(count) if forwards else reversed(range(count)):
        v = np.array(precise(vectors)[..., i:, i])
        v[..., 0] = 1
        scale = np.conjugate(tau[..., i]) if conjugate else tau[..., i]
        projected = np.conjugate(v)[..., None, :] @ result[..., i:, :]
        result[..., i:, :] -= scale[..., None, None] * v[..., :, None] * projected
    return result


@kernel("aten::linalg_householder_product", dtypes=INEXACT)
@quiet
def linalg_householder_product(vectors: Array, tau: Array) -> Any:
    """The first columns of ``H_1 H_2 ... H_k``."""
    check_matrices(vectors)
    rows, columns = vectors.shape[-2:]
    if columns > rows or tau.shape[-1] > columns or tau.shape[:-1] != vectors.shape[:-2]:
        raise Unsupported(f"Householder vectors of shape {vectors.shape} with factors of shape {tau.shape}")
    start = np.broadcast_to(np.eye(rows, columns, dtype=vectors.dtype), vectors.shape)
    return narrow(_reflect(vectors, tau, start, forwards=False), vectors)


@kernel("aten::ormqr", dtypes=INEXACT)
@quiet
def ormqr(vectors: Array, tau: Array, x: Array, left: bool = True, transpose: bool = False) -> Any:
    """``Q x``, ``Qᴴ x``, ``x Q`` or ``x Qᴴ``, where ``Q = H_1 H_2 ... H_k`` with all its columns."""
    check_matrices(vectors)
    check_matrices(x)
    shapes = (vectors.shape[:-2], tau.shape[:-1], x.shape[:-2])
    if len(set(shapes)) > 1 or x.shape[-2 if left else -1] != vectors.shape[-2]:
        raise Unsupported(f"shapes {vectors.shape}, {tau.shape} and {x.shape}")
    if tau.shape[-1] > min(vectors.shape[-2:]):
        raise Unsupported(f"{tau.shape[-1]} factors for vectors of shape {vectors.shape}")
    if left:
        return narrow(_reflect(vectors, tau, x, forwards=transpose, conjugate=transpose), x)
    turned = _reflect(vectors, tau, adjoint(x), forwards=not transpose, conjugate=not transpose)
    return narrow(adjoint(turned), x)


# -- singular values and eigenvalues ------------------------------------------------------------------


def _check_finite(x: Array) -> None:
    """LAPACK does not converge on NaN and infinities; the host says so in its own words."""
    if not np.isfinite(x).all():
        raise Unsupported("a decomposition of NaN or infinity")


@kernel("aten::_linalg_svd", dtypes=INEXACT)
@quiet
def linalg_svd(
    a: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Any, Any, Any]:
    check_matrices(a)
    _check_finite(a)
    if driver is not None:
        raise Unsupported(f"the driver {driver!r}, which is for cuda")
    if not compute_uv:
        s = np.linalg.svd(precise(a), compute_uv=False)
        return np.empty((0,), a.dtype), _real(s, a), np.empty((0,), a.dtype)
    u, s, vh = np.linalg.svd(precise(a), full_matrices=full_matrices)
    return narrow(u, a), _real(s, a), narrow(vh, a)


@kernel("aten::_linalg_eigh", dtypes=INEXACT)
@quiet
def linalg_eigh(a: Array, uplo: str = "L", compute_v: bool = True) -> tuple[Any, Any]:
    check_square(a)
    _check_finite(a)
    triangle: Literal["L", "U"] = "U" if uplo.upper() == "U" else "L"
    if uplo.upper() != triangle:
        raise Unsupported(f"the triangle {uplo!r}")
    if not compute_v:
        return _real(np.linalg.eigvalsh(precise(a), triangle), a), np.empty((0,), a.dtype)
    values, vectors = np.linalg.eigh(precise(a), triangle)
    return _real(values, a), narrow(vectors, a)


@kernel("aten::linalg_eig", dtypes=INEXACT)
@quiet
def linalg_eig(x: Array) -> tuple[Any, Any]:
    check_square(x)
    _check_finite(x)
    dtype = np.result_type(x.dtype, np.complex64)
    values, vectors = np.linalg.eig(precise(x))
    return values.astype(dtype), vectors.astype(dtype)


@kernel("aten::_linalg_eigvals", "aten::linalg_eigvals", dtypes=INEXACT)
@quiet
def linalg_eigvals(x: Array) -> Any:
    check_square(x)
    _check_finite(x)
    return np.linalg.eigvals(precise(x)).astype(np.result_type(x.dtype, np.complex64))
