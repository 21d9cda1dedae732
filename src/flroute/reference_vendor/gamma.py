"""The gamma function's family: DLMF chapters 5, 8 and 25, Abramowitz & Stegun chapter 6. In double precision."""

from __future__ import annotations

from math import factorial, log, pi
from typing import Any

import numpy as np

from flroute.reference_vendor.error_functions import polynomial
from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import (
    FLOATS,
    REALS,
    Array,
    Result,
    floating,
    narrow,
    quiet,
    wide,
)
from flroute.vendor import Unsupported, kernel

# B_2, B_4, ... B_24
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
              854513 / 138, -236364091 / 2730)  # fmt: skip
_LARGE = 10.0  # from here on eight terms of an asymptotic series give a double
_EULER = 0.5772156649015329


def _zeta_less_one(k: int) -> float:
    """zeta(k) - 1 for k >= 2, by Euler and Maclaurin's formula from 10 on."""
    head = sum(float(n) ** -k for n in range(2, 10))
    tail, rising = 10.0 ** (1 - k) / (k - 1) + 0.5 * 10.0**-k, float(k)
    for j, number in enumerate(_BERNOULLI[:8], start=1):
        tail += number / factorial(2 * j) * rising * 10.0 ** (1 - k - 2 * j)
        rising *= (k + 2 * j - 1) * (k + 2 * j)
    return head + tail


# log gamma(2 + z) as a series in z (DLMF 5.7.3), enough of it for |z| <= 1/2.
_AROUND_TWO = (0.0, 1 - _EULER, *((-1) ** k * _zeta_less_one(k) / k for k in range(2, 32)))
# log gamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2, times x, in powers of 1 / x^2 (DLMF 5.11.1)
_STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:8], start=1))
# log(x) - 1 / (2x) - digamma(x), times x^2, in powers of 1 / x^2 (DLMF 5.11.2)
_DIGAMMA = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI[:8], start=1))


def _stirling_error(x: Array) -> Result:
    return polynomial(1 / (x * x), _STIRLING) / x


def _sin_pi(x: Array) -> Result:
    """sin(pi x) up to its sign, and exactly 0 where it is."""
    return np.sin(pi * (x - np.rint(x)))


def log_gamma(x: Array) -> Result:
    """log |gamma(x)| of doubles: Stirling's series from 10 on, below it the recurrence down to the series around 2."""
    reflected = np.where(x < 0.5, 1 - x, x)
    large = np.maximum(reflected, _LARGE)
    far = (large - 0.5) * np.log(large) - large + 0.5 * log(2 * pi) + _stirling_error(large)
    z, factors = np.minimum(reflected, _LARGE), np.ones(x.shape)
    for _ in range(8):
        down = z > 2.5
        z = np.where(down, z - 1, z)
        factors = np.where(down, factors * z, factors)
    below = z < 1.5  # log gamma(z) = log gamma(1 + z) - log(z)
    logarithm = np.log(np.where(below, z, factors))
    near = polynomial(z - np.where(below, 1, 2), _AROUND_TWO) + np.where(below, -logarithm, logarithm)
    result = np.where(np.isposinf(reflected), np.inf, np.where(reflected < _LARGE, near, far))
    result = np.where(x < 0.5, log(pi) - np.log(np.absolute(_sin_pi(x))) - result, result)
    return np.where(np.isneginf(x), np.inf, np.where(np.isnan(x), x, result))


@kernel("aten::lgamma", dtypes=REALS)
@quiet
def lgamma(x: Array) -> Result:
    x = floating(x)
    return narrow(log_gamma(wide(x)), x)


def _digamma_of_doubles(x: Array) -> Result:
    """The recurrence up to 10 and the asymptotic series there; below 1/2 the reflection (DLMF 5.5.4)."""
    y = np.where(x < 0.5, 1 - x, x)
    result = np.zeros(x.shape)
    for _ in range(10):
        small = y < _LARGE
        result = np.where(small, result - 1 / y, result)
        y = np.where(small, y + 1, y)
    square = 1 / (y * y)
    result = result + np.log(y) - 0.5 / y - square * polynomial(square, _DIGAMMA)
    angle = pi * (x - np.rint(x))
    result = np.where(x < 0.5, result - pi / np.tan(angle), result)
    result = np.where((x < 0) & (x == np.rint(x)), np.nan, result)
    return np.where(x == 0, np.copysign(np.inf, -x), result)


@kernel("aten::digamma", dtypes=REALS)
@quiet
def digamma(x: Array) -> Result:
    x = floating(x)
    return narrow(_digamma_of_doubles(wide(x)), x)


# -- zeta ---------------------------------------------------------------------------------------------

_MOST_TERMS = 10_000


def _hurwitz_zeta(s: Any, q: Array) -> Result:
    """The sum of (q + n)^-s over n >= 0: nine terms and as many more as lead beyond 9, then Euler and Maclaurin's formula."""
    s, a = np.broadcast_arrays(s, q)
    total = a**-s
    counts = np.zeros(a.shape)
    while True:
        more = (s > 1) & (a > -np.inf) & ((counts < 9) | (a <= 9)) & ~np.isnan(a)
        if not np.any(more):
            break
        if np.any(counts > _MOST_TERMS):
            raise Unsupported(f"zeta of {q.min()}: a sum of more than {_MOST_TERMS} terms")
        counts = counts + more
        a = np.where(more, a + 1, a)
        total = np.where(more, total + a**-s, total)
    power = a**-s
    total = total + a ** (1 - s) / (s - 1) - 0.5 * power
    rising = s
    for k, number in enumerate(_BERNOULLI, start=1):
        power = power / a
        total = total + number / factorial(2 * k) * rising * power
        rising = rising * (s + 2 * k - 1) * (s + 2 * k)
        power = power / a
    pole = (q <= 0) & (q == np.floor(q))
    undefined = (s < 1) | ((q <= 0) & (s != np.floor(s)) & ~pole)
    total = np.where(pole, np.inf, total)
    return np.where(s == 1, np.inf, np.where(undefined, np.nan, total))


@promoting("aten::special_zeta", dtypes=REALS)
@quiet
def special_zeta(x: Array, y: Array) -> Result:
    x, y = promoted(x, y, floats=True)
    return narrow(_hurwitz_zeta(wide(x), wide(y)), x)


@kernel("aten::polygamma", dtypes=REALS)
@quiet
def polygamma(n: int, x: Array) -> Result:
    """(-1)^(n + 1) n! zeta(n + 1, x); of order 1 the reflection (DLMF 5.15.6) serves below 1/2."""
    if n < 0 or n > 150:
        raise Unsupported(f"polygamma of order {n}")
    x = floating(x)
    exact = wide(x)
    if n == 0:
        return narrow(_digamma_of_doubles(exact), x)
    if n > 1:
        return narrow((-1) ** (n + 1) * factorial(n) * _hurwitz_zeta(np.float64(n + 1), exact), x)
    right = _hurwitz_zeta(np.float64(2), np.where(exact < 0.5, 1 - exact, exact))
    right = np.where(np.isinf(exact), 0.0, right)
    return narrow(np.where(exact < 0.5, (pi / _sin_pi(exact)) ** 2 - right, right), x)


# -- incomplete gamma functions -----------------------------------------------------------------------


def _poisson(a: Array, x: Array) -> Result:
    """x^a exp(-x) / gamma(a + 1); for large a by C. Loader, "Fast and accurate computation of binomial probabilities" (2000)."""
    d = (x - a) / a
    saddle = np.exp(-a * (d - np.log1p(d)) - _stirling_error(a)) / np.sqrt(2 * pi * a)
    return np.where(a < _LARGE, np.exp(a * np.log(x) - x - log_gamma(a + 1)), saddle)


def _lower_series(a: Array, x: Array) -> Result:
    """The sum of x^n / ((a + 1) ... (a + n)) (DLMF 8.7.1)."""
    term, total, n = np.ones(a.shape), np.ones(a.shape), 0
    while np.any(term > 1e-17 * total):
        n += 1
        term = term * (x / (a + n))
        total = total + term
    return total


def _upper_fraction(a: Array, x: Array) -> Result:
    """The continued fraction 1 / (x + 1 - a - (1 - a) / (x + 3 - a - ...)) (DLMF 8.9.2), by Lentz's method."""
    tiny = 1e-300
    b = x + 1 - a
    c, d = np.full(a.shape, 1 / tiny), 1 / b
    value, change, n = d, np.full(a.shape, 2.0), 0
    while np.any(np.absolute(change - 1) > 1e-16) and n < 20 * _MOST_TERMS:
        n += 1
        step = -n * (n - a)
        b = b + 2
        d = 1 / _not_zero(step * d + b)
        c = _not_zero(b + step / c)
        change = c * d
        value = value * change
        if n > 50 and np.all(np.absolute(change - 1) < 5e-16):
            break
    return value


def _not_zero(x: Array) -> Result:
    return np.where(np.absolute(x) < 1e-300, 1e-300, x)


def _regularized(a: Array, x: Array, upper: bool) -> Result:
    a, x = np.broadcast_arrays(a, x)
    plain = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    if np.any(plain & (a > 1e6)):
        raise Unsupported("an incomplete gamma function of order above a million")
    order, at = np.where(plain, a, 1.0), np.where(plain, x, 1.0)
    series = at < order + 1
    lower = _poisson(order, at)
    by_series = lower * _lower_series(order, np.where(series, at, 0.0))
    by_fraction = lower * order * _upper_fraction(order, np.where(series, order + 2, at))
    part = np.where(series, by_series, by_fraction)
    result = np.where(series == upper, 1 - part, part)
    # The edges, the last ones first: what PyTorch gives for a = 0, x = 0 and infinities.
    zero, one = (1.0, 0.0) if upper else (0.0, 1.0)
    result = np.where(np.isnan(a) | np.isnan(x), np.nan, result)
    result = np.where(np.isposinf(x), one, result)
    result = np.where(np.isposinf(a), np.where(np.isposinf(x), np.nan, zero), result)
    result = np.where(x == 0, zero, result)
    result = np.where(a == 0, np.where(x > 0, one, np.nan), result)
    return np.where((a < 0) | (x < 0), np.nan, result)


@promoting("aten::igamma", dtypes=FLOATS)
@quiet
def igamma(x: Any, y: Any) -> Result:
    """The lower function P(x, y)."""
    x, y = promoted(x, y)
    return narrow(_regularized(wide(x), wide(y), upper=False), x)


@promoting("aten::igammac", dtypes=FLOATS)
@quiet
def igammac(x: Any, y: Any) -> Result:
    """The upper function Q(x, y) = 1 - P(x, y)."""
    x, y = promoted(x, y)
    return narrow(_regularized(wide(x), wide(y), upper=True), x)
