"""The decomposition of symmetric and Hermitian matrices that need not be positive definite.

``P A Pᵀ = L D Lᴴ``, where ``D`` has blocks of one or two rows, chosen by Bunch and Kaufman so that ``L`` stays small
(Golub & Van Loan, Matrix Computations, section 4.4.4). Layout and pivots are those of LAPACK's ``sytf2`` and ``hetf2`` for the
lower triangle: interchanges are not carried through to columns of ``L`` that are finished.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.linalg import INEXACT, check_matrices, check_square, precise, values_with_pivots
from flroute.reference_vendor.support import Array, narrow, quiet
from flroute.vendor import Unsupported, kernel

_ALPHA = (1 + np.sqrt(17)) / 8
"""With it the elements grow least over one step of two rows or two steps of one."""


@kernel("aten::linalg_ldl_factor_ex", dtypes=INEXACT)
@quiet
def linalg_ldl_factor_ex(
    a: Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Any, Any, Any]:
    """Both factors in one matrix, the pivots, and per matrix 0 or the first step without a pivot, counted from 1."""
    check_square(a)
    if not np.isfinite(a).all():
        raise Unsupported("a decomposition of NaN or infinity")
    size, factors = a.shape[-1], np.tril(precise(a))
    pivots, info = np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)
    for place in np.ndindex(a.shape[:-2]):
        lower = factors[place]
        work = lower + _turned(np.tril(lower, -1), hermitian)
        if hermitian and size:
            np.fill_diagonal(work, work.diagonal().real)
        info[place] = _factorize(work, pivots[place], hermitian)
        factors[place] = np.tril(work)
    if check_errors and info.any():
        raise Unsupported("a decomposition of a matrix that has none")
    return narrow(factors, a), pivots, info


def _turned(x: Array, hermitian: bool) -> Array:
    turned = x.swapaxes(-1, -2)
    return np.conjugate(turned) if hermitian else turned


def _size(x: Any) -> Any:
    """The absolute value as LAPACK compares it."""
    return np.abs(x.real) + np.abs(x.imag) if np.iscomplexobj(x) else np.abs(x)


def _factorize(work: Array, pivots: Array, hermitian: bool) -> int:
    """Decompose a full matrix in place, writing ``D`` and the columns of ``L`` below its diagonal."""
    info, start, size = 0, 0, len(work)
    while start < size:
        rest = work[start:, start:]
        pivot, step = _pivot(rest)
        if step == 0:
            info = info or start + 1
            step = 1
        else:
            _interchange(rest, step - 1, pivot)
            block = rest[:step, :step].copy()
            columns = rest[step:, :step] @ _inverse(block)
            rest[step:, step:] -= columns @ _turned(rest[step:, :step], hermitian)
            rest[step:, :step] = columns
        pivots[start : start + step] = (start + pivot + 1) * (1 if step == 1 else -1)
        start += step
    return info


def _pivot(rest: Array) -> tuple[int, int]:
    """Which row to bring forward, and how many rows the next block of ``D`` has; no rows if there is no pivot."""
    below = _size(rest[1:, 0])
    diagonal, largest = float(_size(rest[0, 0])), float(below.max(initial=0))
    if max(diagonal, largest) == 0:
        return 0, 0
    if diagonal >= _ALPHA * largest:
        return 0, 1
    row = 1 + int(below.argmax())
    beside = _size(rest[row])
    beside[row] = 0
    most = float(beside.max())
    if diagonal >= _ALPHA * largest * (largest / most):
        return 0, 1
    return (row, 1) if float(_size(rest[row, row])) >= _ALPHA * most else (row, 2)


def _interchange(rest: Array, one: int, other: int) -> None:
    if one != other:
        rest[[one, other]] = rest[[other, one]]
        rest[:, [one, other]] = rest[:, [other, one]]


def _inverse(block: Array) -> Array:
    """Of a block of one or two rows."""
    if len(block) == 1:
        return 1 / block
    (a, b), (c, d) = block
    # divided by b and c, which are the largest of the four: nothing overflows
    determinant = (a / c) * (d / b) - 1
    adjugate = np.array([[d / (b * c), -1 / c], [-1 / b, a / (b * c)]])
    return np.asarray(adjugate / determinant)


@kernel("aten::linalg_ldl_solve", when=values_with_pivots)
@quiet
def linalg_ldl_solve(factors: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Any:
    check_square(factors)
    check_matrices(b)
    if factors.shape[-1] != b.shape[-2] or pivots.shape != factors.shape[:-1] or factors.dtype != b.dtype:
        raise Unsupported(f"factors of shape {factors.shape} and right-hand sides of shape {b.shape}")
    batch = np.broadcast_shapes(factors.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(precise(b), (*batch, *b.shape[-2:])))
    lower = np.broadcast_to(precise(factors), (*batch, *factors.shape[-2:]))
    places = np.broadcast_to(pivots, (*batch, pivots.shape[-1]))
    for place in np.ndindex(batch):
        _solve(lower[place], places[place], x[place], hermitian)
    return narrow(x, b)


def _solve(lower: Array, pivots: Array, x: Array, hermitian: bool) -> None:
    """``L D`` forwards, then ``Lᴴ`` backwards, with the interchanges where they were made."""
    steps, start = [], 0
    while start < len(pivots):
        steps.append((start, start + (1 if pivots[start] > 0 else 2)))
        start = steps[-1][1]
    for start, stop in steps:
        _interchange_rows(x, stop - 1, pivots[start])
        x[stop:] -= lower[stop:, start:stop] @ x[start:stop]
        block = np.tril(lower[start:stop, start:stop])
        x[start:stop] = _inverse(block + _turned(np.tril(block, -1), hermitian)) @ x[start:stop]
    for start, stop in reversed(steps):
        x[start:stop] -= _turned(lower[stop:, start:stop], hermitian) @ x[stop:]
        _interchange_rows(x, stop - 1, pivots[start])


def _interchange_rows(x: Array, row: int, pivot: int) -> None:
    other = abs(int(pivot)) - 1
    if other != row:
        x[[row, other]] = x[[other, row]]
