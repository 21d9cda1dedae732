"""Orthogonal polynomials by their recurrences: Abramowitz & Stegun 22.7, DLMF 18.9. In double precision.

``n`` is a tensor, cut to an integer: every element has a degree of its own. Below 0 the polynomials are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import REALS, Array, Result, narrow, quiet, wide
from flroute.vendor import Unsupported

_HIGHEST_DEGREE = 10_000

Step = Callable[[int, Array, Array, Array], Any]
"""The polynomial of degree k + 1 from k, x, and the polynomials of degree k and k - 1."""


@quiet
def _of_degree(x: Any, n: Any, first: Callable[[Array], Array], step: Step) -> Result:
    """Run the recurrence from 1 and ``first(x)`` to the highest degree, and keep each element where its own is reached."""
    x, n = promoted(x, n, floats=True)
    at, degree = np.broadcast_arrays(wide(x), np.trunc(wide(n)))
    highest = int(np.max(degree, initial=0, where=np.isfinite(degree)))
    if highest > _HIGHEST_DEGREE or not np.all(np.isfinite(degree)):
        raise Unsupported(f"a polynomial of degree {np.max(degree)}")
    before, current = np.ones(at.shape), first(at)
    result = np.where(degree == 0, before, np.where(degree == 1, current, 0.0))
    for k in range(1, highest):
        before, current = current, step(k, at, current, before)
        result = np.where(degree == k + 1, current, result)
    return narrow(result, x)


def _chebyshev(k: int, x: Array, current: Array, before: Array) -> Array:
    return 2 * x * current - before


def _shifted_chebyshev(k: int, x: Array, current: Array, before: Array) -> Array:
    return 2 * (2 * x - 1) * current - before


# -- Chebyshev's four kinds: all follow one recurrence, from different polynomials of degree 1 -----------


@promoting("aten::special_chebyshev_polynomial_t", dtypes=REALS)
def special_chebyshev_polynomial_t(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: x, _chebyshev)


@promoting("aten::special_chebyshev_polynomial_u", dtypes=REALS)
def special_chebyshev_polynomial_u(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 2 * x, _chebyshev)


@promoting("aten::special_chebyshev_polynomial_v", dtypes=REALS)
def special_chebyshev_polynomial_v(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 2 * x - 1, _chebyshev)


@promoting("aten::special_chebyshev_polynomial_w", dtypes=REALS)
def special_chebyshev_polynomial_w(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 2 * x + 1, _chebyshev)


@promoting("aten::special_shifted_chebyshev_polynomial_t", dtypes=REALS)
def special_shifted_chebyshev_polynomial_t(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 2 * x - 1, _shifted_chebyshev)


@promoting("aten::special_shifted_chebyshev_polynomial_u", dtypes=REALS)
def special_shifted_chebyshev_polynomial_u(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 4 * x - 2, _shifted_chebyshev)


@promoting("aten::special_shifted_chebyshev_polynomial_v", dtypes=REALS)
def special_shifted_chebyshev_polynomial_v(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 4 * x - 3, _shifted_chebyshev)


@promoting("aten::special_shifted_chebyshev_polynomial_w", dtypes=REALS)
def special_shifted_chebyshev_polynomial_w(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 4 * x - 1, _shifted_chebyshev)


# -- Hermite's (physicist's and probabilist's), Laguerre's and Legendre's --------------------------------


@promoting("aten::special_hermite_polynomial_h", dtypes=REALS)
def special_hermite_polynomial_h(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: 2 * x, lambda k, x, current, before: 2 * x * current - 2 * k * before)


@promoting("aten::special_hermite_polynomial_he", dtypes=REALS)
def special_hermite_polynomial_he(x: Any, n: Any) -> Result:
    return _of_degree(x, n, lambda x: x, lambda k, x, current, before: x * current - k * before)


@promoting("aten::special_laguerre_polynomial_l", dtypes=REALS)
def special_laguerre_polynomial_l(x: Any, n: Any) -> Result:
    def step(k: int, x: Array, current: Array, before: Array) -> Any:
        return ((2 * k + 1 - x) * current - k * before) / (k + 1)

    return _of_degree(x, n, lambda x: 1 - x, step)


@promoting("aten::special_legendre_polynomial_p", dtypes=REALS)
def special_legendre_polynomial_p(x: Any, n: Any) -> Result:
    def step(k: int, x: Array, current: Array, before: Array) -> Any:
        return ((2 * k + 1) * x * current - k * before) / (k + 1)

    return _of_degree(x, n, lambda x: x, step)
