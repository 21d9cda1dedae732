"""Linear systems: LU decomposition, solving, inverse and determinant.

Batches are leading dimensions. Single precision is computed in double and rounded once. numpy has no LU decomposition, so it is
written here: column by column within a block, block by block through matrix products, for all matrices of a batch at once
(Golub & Van Loan, Matrix Computations, sections 3.1.3, 3.2.11 and 3.4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import COMPLEX, FLOATS, Array, narrow, quiet
from flroute.vendor import Unsupported, kernel

INEXACT = (*FLOATS, *COMPLEX)
_INEXACT_TYPES = frozenset(getattr(torch, name) for name in INEXACT)
_BLOCK = 16


# -- shared -------------------------------------------------------------------------------------------


def precise(x: Array) -> Array:
    """``x`` in double precision, real or complex; ``x`` itself if it is that already, so never to be written to."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)


def adjoint(x: Array) -> Array:
    """The conjugate transpose of each matrix."""
    return np.conjugate(x.swapaxes(-1, -2))


def check_matrices(x: Array) -> None:
    if x.ndim < 2:
        raise Unsupported(f"shape {x.shape} is not one of matrices")


def check_square(x: Array) -> None:
    check_matrices(x)
    if x.shape[-1] != x.shape[-2]:
        raise Unsupported(f"matrices of shape {x.shape} are not square")


def check_info(info: Array, check_errors: bool, what: str) -> None:
    """Leave it to the host to say which matrix of the batch is at fault."""
    if check_errors and np.any(info):
        raise Unsupported(f"{what} of a matrix that has none")


def values_with_pivots(*tensors: Any, **_: Any) -> bool | str:
    """For ops on float or complex matrices and int32 pivots."""
    found = [t for t in tensors if isinstance(t, torch.Tensor)]
    values = {t.dtype for t in found} - {torch.int32}
    if len(values) != 1 or not values <= _INEXACT_TYPES:
        return f"values of {', '.join(sorted(map(str, values))) or 'integers'}"
    return len(found) > 1 and found[1].dtype is torch.int32


# -- triangular systems -------------------------------------------------------------------------------


def solve_triangular(a: Array, b: Array, upper: bool, unit: bool = False) -> Array:
    """``x`` of ``a @ x = b`` by substitution, in double precision; only one triangle of ``a`` is read.

    A zero on the diagonal gives infinities and NaN, as in LAPACK.
    """
    a, b = precise(a), precise(b)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*batch, *b.shape[-2:])), dtype=np.result_type(a, b))
    if upper:  # the rows from last to first are those of a lower triangle
        _substitute(a[..., ::-1, ::-1], x[..., ::-1, :], unit)
    else:
        _substitute(a, x, unit)
    return x


def _substitute(lower: Array, x: Array, unit: bool) -> None:
    """Forward substitution in place; what a block of rows contributes to those below is one matrix product."""
    size = lower.shape[-1]
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        for row in range(start, stop):
            if row > start:
                known = lower[..., row : row + 1, start:row] @ x[..., start:row, :]
                x[..., row, :] -= known[..., 0, :]
            if not unit:
                x[..., row, :] /= lower[..., row, row, None]
        if stop < size:
            x[..., stop:, :] -= lower[..., stop:, start:stop] @ x[..., start:stop, :]


def _transposed_sides(a: Array, b: Array) -> tuple[Array, Array]:
    """``x a = b`` as ``aᵀ xᵀ = bᵀ``."""
    return a.swapaxes(-1, -2), b.swapaxes(-1, -2)


@kernel("aten::linalg_solve_triangular", dtypes=INEXACT)
@quiet
def linalg_solve_triangular(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    check_square(a)
    check_matrices(b)
    _check_sizes(a, b, left)
    if left:
        return narrow(solve_triangular(a, b, upper, unitriangular), b)
    x = solve_triangular(*_transposed_sides(a, b), not upper, unitriangular)
    return narrow(x.swapaxes(-1, -2), b)


def _check_sizes(a: Array, b: Array, left: bool = True) -> None:
    if a.shape[-1] != b.shape[-2 if left else -1]:
        raise Unsupported(f"matrices of shape {a.shape} and right-hand sides of shape {b.shape}")


@kernel("aten::triangular_solve", dtypes=INEXACT)
@quiet
def triangular_solve(
    b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    """The older form, which also returns a copy of the coefficients."""
    check_square(a)
    check_matrices(b)
    _check_sizes(a, b)
    turned = a.swapaxes(-1, -2) if transpose else a
    x = narrow(solve_triangular(turned, b, upper != transpose, unitriangular), b)
    return x, np.array(np.broadcast_to(a, (*x.shape[:-2], *a.shape[-2:])))


# -- LU -----------------------------------------------------------------------------------------------


def lu_decompose(a: Array) -> tuple[Array, Array, Array]:
    """``P a = L U`` in double precision.

    Returns:
        ``L`` without its unit diagonal and ``U`` in one array; the pivots, with row ``i`` having been exchanged
        with row ``pivots[i] - 1``; and, per matrix, 0 or the number, from 1, of the first zero on the diagonal of ``U``.
    """
    rows, columns = a.shape[-2:]
    order, batch = min(rows, columns), a.shape[:-2]
    lu = np.array(precise(a), order="C").reshape(math.prod(batch), rows, columns)
    pivots, info = np.zeros((len(lu), order), np.int32), np.zeros(len(lu), np.int32)
    for start in range(0, order, _BLOCK):
        stop = min(start + _BLOCK, order)
        _decompose_panel(lu, pivots, info, start, stop)
        if stop < columns:
            _substitute(lu[:, start:stop, start:stop], lu[:, start:stop, stop:], unit=True)
            lu[:, stop:, stop:] -= lu[:, stop:, start:stop] @ lu[:, start:stop, stop:]
    return lu.reshape(a.shape), pivots.reshape(*batch, order), info.reshape(batch)


def _decompose_panel(lu: Array, pivots: Array, info: Array, start: int, stop: int) -> None:
    """Columns ``start`` to ``stop`` in place, with row exchanges over the whole width."""
    every = np.arange(len(lu))
    for j in range(start, stop):
        column = lu[:, j:, j]
        # LAPACK's measure of a complex number, the sum of its parts' sizes, decides ties as the host does.
        size = np.abs(column.real) + np.abs(column.imag) if lu.dtype.kind == "c" else np.abs(column)
        best = j + np.argmax(size, axis=1)
        pivots[:, j] = best + 1
        chosen = lu[every, best]
        lu[every, best] = lu[:, j]
        lu[:, j] = chosen
        diagonal = lu[:, j, j]
        info[(diagonal == 0) & (info == 0)] = j + 1
        lu[:, j + 1 :, j] /= np.where(diagonal == 0, 1, diagonal)[:, None]
        if j + 1 < stop:
            lu[:, j + 1 :, j + 1 : stop] -= lu[:, j + 1 :, j, None] * lu[:, None, j, j + 1 : stop]


def permutation_of(pivots: Array, rows: int) -> Array:
    """Where each row of ``P a`` is found in ``a``, per matrix: the exchanges, one after the other."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    order = np.tile(np.arange(rows), (len(flat), 1))
    every = np.arange(len(flat))
    for i in range(flat.shape[1]):
        other = flat[:, i] - 1
        order[every, i], order[every, other] = order[every, other], order[every, i]
    return order.reshape(*pivots.shape[:-1], rows)


def lu_solve(lu: Array, pivots: Array, b: Array, adjoint_: bool = False) -> Array:
    """``x`` of ``a @ x = b``, or of ``aᴴ @ x = b``, given the decomposition of ``a``."""
    lu = precise(lu)
    batch = np.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    order = np.broadcast_to(permutation_of(pivots, lu.shape[-1]), (*batch, lu.shape[-1]))[..., None]
    if not adjoint_:
        b = np.take_along_axis(np.broadcast_to(b, (*batch, *b.shape[-2:])), order, axis=-2)
        return solve_triangular(lu, solve_triangular(lu, b, upper=False, unit=True), upper=True)
    turned = adjoint(lu)
    x = solve_triangular(turned, solve_triangular(turned, b, upper=False), upper=True, unit=True)
    result = np.empty_like(x)
    np.put_along_axis(result, order, x, axis=-2)
    return result


@kernel("aten::linalg_lu_factor_ex", dtypes=INEXACT)
@quiet
def linalg_lu_factor_ex(a: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Any, Any, Any]:
    _check_pivoting(pivot)
    check_matrices(a)
    lu, pivots, info = lu_decompose(a)
    check_info(info, check_errors, "the LU decomposition")
    return narrow(lu, a), pivots, info


@kernel("aten::linalg_lu", dtypes=INEXACT)
@quiet
def linalg_lu(a: Array, *, pivot: bool = True) -> tuple[Any, Any, Any]:
    _check_pivoting(pivot)
    check_matrices(a)
    lu, pivots, _ = lu_decompose(a)
    p, lower, upper = _unpacked(lu, pivots)
    return narrow(p, a), narrow(lower, a), narrow(upper, a)


def _check_pivoting(pivot: bool) -> None:
    if not pivot:
        raise Unsupported("LU without pivoting, which the host does not offer either")


def _unpacked(lu: Array, pivots: Array) -> tuple[Array, Array, Array]:
    rows, columns = lu.shape[-2:]
    order = min(rows, columns)
    lower = np.tril(lu[..., :order], -1) + np.eye(rows, order, dtype=lu.dtype)
    where = permutation_of(pivots, rows)  # row i of L U is row where[i] of a: a = P (L U)
    p = (where[..., None, :] == np.arange(rows)[:, None]).astype(lu.dtype)
    return p, lower, np.triu(lu[..., :order, :])


@kernel("aten::lu_unpack", when=values_with_pivots)
@quiet
def lu_unpack(
    lu: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Any, Any, Any]:
    check_matrices(lu)
    if pivots.shape != (*lu.shape[:-2], min(lu.shape[-2:])):
        raise Unsupported(f"pivots of shape {pivots.shape} for matrices of shape {lu.shape}")
    _check_pivots(pivots, lu.shape[-2])
    nothing = np.empty((0,), lu.dtype)
    p, lower, upper = _unpacked(lu, pivots)
    return (
        p if unpack_pivots else nothing,
        lower if unpack_data else nothing,
        upper if unpack_data else nothing.copy(),
    )


def _check_pivots(pivots: Array, rows: int) -> None:
    if pivots.size and (pivots.min() < 1 or pivots.max() > rows):
        raise Unsupported(f"a pivot that is not between 1 and {rows}")


@kernel("aten::linalg_lu_solve", when=values_with_pivots)
@quiet
def linalg_lu_solve(lu: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Any:
    check_square(lu)
    check_matrices(b)
    _check_sizes(lu, b, left)
    _check_pivots(pivots, lu.shape[-1])
    if left:
        return narrow(lu_solve(lu, pivots, b, adjoint), b)
    # x a = b is aᴴ xᴴ = bᴴ, x aᴴ = b is a xᴴ = bᴴ
    turned = lu_solve(lu, pivots, np.conjugate(b.swapaxes(-1, -2)), not adjoint)
    return narrow(np.conjugate(turned.swapaxes(-1, -2)), b)


# -- what lu is for -----------------------------------------------------------------------------------


@kernel("aten::_linalg_solve_ex", dtypes=INEXACT)
@quiet
def linalg_solve_ex(
    a: Array, rhs: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Any, Any, Any, Any]:
    check_square(a)
    of_vectors = rhs.ndim == 1 or rhs.shape == a.shape[:-1]
    b = rhs[..., None] if of_vectors else rhs
    if of_vectors and not left:
        raise Unsupported("a vector on the right with left=False")
    _check_sizes(a, b, left)
    lu, pivots, info = lu_decompose(a)
    check_info(info, check_errors, "the solution")
    x = lu_solve(lu, pivots, b) if left else adjoint(lu_solve(lu, pivots, adjoint(b), adjoint_=True))
    return narrow(x[..., 0] if of_vectors else x, a).copy(), narrow(lu, a), pivots, info


@kernel("aten::linalg_inv_ex", dtypes=INEXACT)
@quiet
def linalg_inv_ex(a: Array, *, check_errors: bool = False) -> tuple[Any, Any]:
    check_square(a)
    wide = precise(a)
    try:
        return narrow(np.linalg.inv(wide), a), np.zeros(a.shape[:-2], np.int32)
    except np.linalg.LinAlgError:  # a singular matrix in the batch: the decomposition knows which
        lu, pivots, info = lu_decompose(wide)
    check_info(info, check_errors, "the inverse")
    return narrow(lu_solve(lu, pivots, np.eye(a.shape[-1], dtype=wide.dtype)), a), info


def _exchanges(pivots: Array) -> Array:
    """1 or -1 per matrix: the determinant of the permutation."""
    moved = pivots != np.arange(1, pivots.shape[-1] + 1)
    return np.where(np.count_nonzero(moved, axis=-1) % 2, -1, 1)


def _decompose_for_determinant(a: Array) -> tuple[Array, Array]:
    """LU and pivots of ``a``, or of its transpose where that has the same determinant and is laid out by columns.

    LAPACK works on columns, so the host takes the transpose of a real contiguous tensor, and its gradients expect that.
    """
    turned = bool(a.flags.c_contiguous) and a.dtype.kind == "f"
    lu, pivots, _ = lu_decompose(a.swapaxes(-1, -2) if turned else a)
    return lu, pivots


@kernel("aten::_linalg_det", dtypes=INEXACT)
@quiet
def linalg_det(a: Array) -> tuple[Any, Any, Any]:
    check_square(a)
    lu, pivots = _decompose_for_determinant(a)
    determinant = np.prod(np.diagonal(lu, axis1=-2, axis2=-1), axis=-1) * _exchanges(pivots)
    return narrow(determinant, a), narrow(lu, a), pivots


@kernel("aten::_linalg_slogdet", dtypes=INEXACT)
@quiet
def linalg_slogdet(a: Array) -> tuple[Any, Any, Any, Any]:
    check_square(a)
    lu, pivots = _decompose_for_determinant(a)
    diagonal = np.diagonal(lu, axis1=-2, axis2=-1)
    size = np.abs(diagonal)
    directions = np.where(size == 0, 0, diagonal / size)
    sign = np.prod(directions, axis=-1) * _exchanges(pivots)
    log = np.sum(np.log(size), axis=-1)
    return narrow(sign, a), log.astype(a.real.dtype, copy=False), narrow(lu, a), pivots
