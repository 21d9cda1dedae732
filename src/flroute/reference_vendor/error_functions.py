"""The error function, its relatives and inverses: Abramowitz & Stegun 7.1, DLMF chapter 7. In double precision."""

from __future__ import annotations

from math import factorial, pi, sqrt

import numpy as np

from flroute.reference_vendor.support import (
    REALS,
    Array,
    Result,
    floating,
    narrow,
    quiet,
    wide,
)
from flroute.vendor import kernel

# (1 + 2z) exp(z^2) erfc(z) for z >= 0 as a polynomial in t = (z - 3.75) / (z + 3.75), lowest power first:
# the Chebyshev expansion to 22 terms, computed to 50 digits and rewritten in powers of t. Off by 9e-16 relative.
POLE = 3.75
SCALED = (
    1.2375126308378275, -0.14024059858554525, 0.0035854154854790257, 0.08227673848999506,
    -0.10880393014244462, 0.09230432116428125, -0.05869339857664934, 0.02836227737211114,
    -0.009746579683265262, 0.0017556261651970652, 0.000293714378044958, -0.00029015535246077655,
    5.164652974177416e-05, 2.2387565714911816e-05, -1.1438048033346894e-05, -9.792625707303523e-07,
    1.7419821586224816e-06, -5.084465378687302e-08, -2.4857126248016745e-07, 1.879082322370048e-08,
    3.197926671666804e-08, -1.9551358868985616e-09, -2.623107347133476e-09,
)  # fmt: skip
# erf(x) / x as a series in x^2 (A&S 7.1.5), enough of it for x^2 <= 1/4.
SERIES = tuple(2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)) for n in range(14))
_BLOCK = 8192  # doubles: three such buffers stay in a core's own cache over the polynomial's 46 passes
_SLOPE = 2 / sqrt(pi)
_ROOT_HALF, _ROOT_TWO = sqrt(0.5), sqrt(2)


def polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule; the coefficients come lowest power first."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result *= x
        result += coefficient
    return result


def _scaled(z: Array) -> Result:
    """exp(z^2) erfc(z) for z >= 0."""
    t = 1 - 2 * POLE / (z + POLE)  # not (z - pole) / (z + pole), which is NaN at infinity
    return polynomial(t, SCALED) / (1 + 2 * z)


def exp_of_square(z: Array, sign: int) -> Result:
    """exp(sign z^2), with what rounding z^2 would lose: in the tail that is most of the error."""
    head = np.minimum(z, 40.0).astype(np.float32).astype(np.float64)  # its square is exact
    return np.exp(sign * head * head) * np.exp(sign * (z - head) * (z + head))


def _erfc_of_block(x: Array) -> Result:
    z = np.absolute(x)
    tail = _scaled(z) * exp_of_square(z, -1)
    return np.where(x < 0, 2 - tail, tail)


def erfc_of_doubles(x: Array) -> Result:
    """The complementary error function of an array of doubles."""
    flat = np.atleast_1d(x).reshape(-1)
    blocks = [_erfc_of_block(flat[start : start + _BLOCK]) for start in range(0, flat.size, _BLOCK)]
    return np.concatenate(blocks or [flat]).reshape(np.shape(x))


def erf_of_doubles(x: Array) -> Result:
    """The error function of an array of doubles: a series in the middle, where 1 - erfc would cancel."""
    small = np.absolute(x) < 0.5
    middle = np.where(small, x, 0.0)
    return np.where(small, middle * polynomial(middle * middle, SERIES), 1 - erfc_of_doubles(x))


@kernel("aten::erf", dtypes=REALS)
@quiet
def erf(x: Array) -> Result:
    x = floating(x)
    return narrow(erf_of_doubles(wide(x)), x)


@kernel("aten::erfc", dtypes=REALS)
@quiet
def erfc(x: Array) -> Result:
    x = floating(x)
    return narrow(erfc_of_doubles(wide(x)), x)


def erfcx_of_doubles(x: Array) -> Result:
    """exp(x^2) erfc(x)."""
    z = np.absolute(x)
    tail = _scaled(z)
    return np.where(x < 0, 2 * exp_of_square(z, 1) - tail, tail)


@kernel("aten::special_erfcx", dtypes=REALS)
@quiet
def special_erfcx(x: Array) -> Result:
    x = floating(x)
    return narrow(erfcx_of_doubles(wide(x)), x)


# -- inverses -----------------------------------------------------------------------------------------

# M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011), single precision, lowest power first:
# erfinv(y) / y as a polynomial in w - 2.5 for w = -log(1 - y^2) < 5, and in sqrt(w) - 3 beyond.
_MIDDLE = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_TAIL = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip
_FAR = 1e-7  # where Giles's approximation ends


def _inverse(y: Array, rest: Array) -> Result:
    """The z >= 0 with erf(z) = y and erfc(z) = rest: Giles's approximation, and one step of Halley's method."""
    w = -np.log(np.maximum(rest, _FAR) * (1 + y))
    middle, tail = polynomial(w - 2.5, _MIDDLE), polynomial(np.sqrt(w) - 3, _TAIL)
    z = y * np.where(w < 5, middle, tail)
    z = np.where(rest < _FAR, _erfc_inverse_in_the_tail(np.minimum(rest, _FAR)), z)
    excess = np.where(rest < 0.5, rest - erfc_of_doubles(z), erf_of_doubles(z) - y)
    step = excess / (_SLOPE * exp_of_square(z, -1))
    z = np.where(rest == 0, np.inf, z - step / (1 + z * step))
    return np.where(rest < 0, np.nan, z)


def _erfc_inverse_in_the_tail(q: Array) -> Result:
    """The z with erfc(z) = q for small q: Newton's method on the logarithm, which is almost a parabola there."""
    target = np.log(q)
    z = np.sqrt(-target)
    for _ in range(6):
        scaled = _scaled(z)
        z = z + (np.log(scaled) - z * z - target) * scaled / _SLOPE
    return z


@kernel("aten::erfinv", dtypes=REALS)
@quiet
def erfinv(x: Array) -> Result:
    x = floating(x)
    y = np.absolute(wide(x))
    return narrow(np.copysign(_inverse(y, 1 - y), x), x)


@kernel("aten::special_ndtri", dtypes=REALS)
@quiet
def special_ndtri(x: Array) -> Result:
    """The quantile of the normal distribution: -sqrt(2) erfcinv(2p)."""
    x = floating(x)
    p = wide(x)
    z = _inverse(np.absolute(2 * p - 1), 2 * np.minimum(p, 1 - p))
    return narrow(_ROOT_TWO * np.where(p < 0.5, -z, z), x)


@kernel("aten::special_log_ndtr", dtypes=REALS)
@quiet
def special_log_ndtr(x: Array) -> Result:
    """log of the normal distribution function, erfc(-x / sqrt(2)) / 2, which underflows on the left."""
    x = floating(x)
    z = wide(x) * _ROOT_HALF
    left = np.log(erfcx_of_doubles(np.maximum(-z, 0)) / 2) - z * z
    return narrow(np.where(z < -1, left, np.log1p(-erfc_of_doubles(z) / 2)), x)
