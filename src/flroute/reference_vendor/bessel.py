"""Bessel functions: DLMF chapters 9 and 10, Abramowitz & Stegun chapters 9 and 10. In double precision.

No tables: a trapezoidal sum over an integral of an analytic function that is periodic, or dies away, converges
geometrically (Trefethen & Weideman, "The exponentially convergent trapezoidal rule", SIAM Review 2014); beyond 25 the
asymptotic series take over, where their smallest term is exp(-50).
"""

from __future__ import annotations

from math import cos, pi, sqrt

import numpy as np

from flroute.reference_vendor.support import REALS, Array, Result, floating, narrow, quiet, wide
from flroute.vendor import kernel

_FAR = 25.0
_EULER = 0.5772156649015329


def _hankel_series(order: float, x: Array, sign: int) -> tuple[Array, Array]:
    """The even and the odd terms of sum of a_k(order) / x^k (DLMF 10.17.1), the signs of each alternating or all alike."""
    even, odd, term = np.zeros(x.shape), np.zeros(x.shape), np.ones(x.shape)
    for k in range(1, 27):
        if k % 2:
            even = even + term
        else:
            odd = odd + term
        term = term * ((4 * order * order - (2 * k - 1) ** 2) / (8 * k)) / x
        if k % 2 == 0:
            term = term * sign
    return even, odd


# -- modified functions of the first kind ---------------------------------------------------------------

_NODES = 16


def _scaled_i(order: int, x: Array) -> Result:
    """exp(-|x|) I_order(|x|) for order 0 and 1: the mean of exp(x cos t) cos(order t) over a quarter of a circle."""
    z = np.absolute(x)
    near, far = np.minimum(z, _FAR), np.maximum(z, _FAR)
    total = np.zeros(x.shape)
    for node in range(_NODES):
        c = cos((node + 0.5) * pi / (2 * _NODES))
        rise = np.exp(near * (c - 1))
        total = total + (
            rise + np.exp(-near * (c + 1)) if order == 0 else -c * rise * np.expm1(-2 * near * c)
        )
    even, odd = _hankel_series(order, far, 1)
    asymptotic = (even - odd) / np.sqrt(2 * pi * far)
    result = np.where(z <= _FAR, total / (2 * _NODES), asymptotic)
    return np.where(np.isnan(x), x, np.copysign(result, x) if order else result)


def _i(order: int, x: Array) -> Result:
    # exp(x / 2) twice: the product may be finite where exp(x) is not
    half = np.exp(np.absolute(x) / 2)
    result = half * (half * _scaled_i(order, x))
    return np.where(np.isinf(x), np.copysign(np.inf, x) if order else np.inf, result)


@kernel("aten::i0", dtypes=REALS)
@quiet
def i0(x: Array) -> Result:
    x = floating(x)
    return narrow(_i(0, wide(x)), x)


@kernel("aten::special_i0e", dtypes=REALS)
@quiet
def special_i0e(x: Array) -> Result:
    x = floating(x)
    return narrow(_scaled_i(0, wide(x)), x)


@kernel("aten::special_i1", dtypes=REALS)
@quiet
def special_i1(x: Array) -> Result:
    x = floating(x)
    return narrow(_i(1, wide(x)), x)


@kernel("aten::special_i1e", dtypes=REALS)
@quiet
def special_i1e(x: Array) -> Result:
    x = floating(x)
    return narrow(_scaled_i(1, wide(x)), x)


@kernel("aten::special_modified_bessel_i0", dtypes=REALS)
def special_modified_bessel_i0(x: Array) -> Result:
    return i0(x)


@kernel("aten::special_modified_bessel_i1", dtypes=REALS)
def special_modified_bessel_i1(x: Array) -> Result:
    return special_i1(x)


# -- modified functions of the second kind --------------------------------------------------------------


def scaled_k(order: float, x: Array) -> Result:
    """exp(x) K_order(x) for x >= 1: the integral of exp(-x (cosh t - 1)) cosh(order t) (DLMF 10.32.9)."""
    step = 0.25 / np.sqrt(x)
    total = np.full(x.shape, 0.5)
    for node in range(1, 40):
        t = node * step
        total = total + np.exp(-2 * x * np.sinh(t / 2) ** 2) * np.cosh(order * t)
    return np.where(np.isposinf(x), 0.0, total * step)


def _small_k(order: int, x: Array) -> Result:
    """K_0 and K_1 for x <= 1 by their series (DLMF 10.31.1 and 10.31.2)."""
    quarter = x * x / 4
    logarithm = np.log(x / 2) + _EULER
    term, harmonic, series, first = np.ones(x.shape), 0.0, np.zeros(x.shape), np.zeros(x.shape)
    for k in range(14):
        more = harmonic + (1 / (k + 1) if order else 0.0)
        first = first + term
        series = series + term * (harmonic + more) / 2
        harmonic += 1 / (k + 1)
        term = term * quarter / ((k + 1) * (k + 1 + order))
    if order == 0:
        return series - logarithm * first
    return 1 / x + x / 2 * (logarithm * first - series)


def _k(order: int, x: Array, scaled: bool) -> Result:
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    near, far = _small_k(order, small), scaled_k(order, large)
    result = np.where(
        x <= 1, near * np.exp(small) if scaled else near, far if scaled else far * np.exp(-large)
    )
    return np.where(x == 0, np.inf, np.where(x < 0, np.nan, np.where(np.isnan(x), x, result)))


@kernel("aten::special_modified_bessel_k0", dtypes=REALS)
@quiet
def special_modified_bessel_k0(x: Array) -> Result:
    x = floating(x)
    return narrow(_k(0, wide(x), scaled=False), x)


@kernel("aten::special_modified_bessel_k1", dtypes=REALS)
@quiet
def special_modified_bessel_k1(x: Array) -> Result:
    x = floating(x)
    return narrow(_k(1, wide(x), scaled=False), x)


@kernel("aten::special_scaled_modified_bessel_k0", dtypes=REALS)
@quiet
def special_scaled_modified_bessel_k0(x: Array) -> Result:
    x = floating(x)
    return narrow(_k(0, wide(x), scaled=True), x)


@kernel("aten::special_scaled_modified_bessel_k1", dtypes=REALS)
@quiet
def special_scaled_modified_bessel_k1(x: Array) -> Result:
    x = floating(x)
    return narrow(_k(1, wide(x), scaled=True), x)


# -- functions of the first and second kind -------------------------------------------------------------

_START = 70  # J_70(25) / J_0(25) is below 1e-20


def _near(x: Array) -> tuple[Array, Array, Array, Array]:
    """J_0, J_1, Y_0 and Y_1 for 0 < x <= 25.

    Miller's backward recurrence (DLMF 3.6) gives J of every order, up to a factor that J_0 + 2 (J_2 + J_4 + ...) = 1
    tells; sums over them give Y (A&S 9.1.88).
    """
    after, current = np.zeros(x.shape), np.full(x.shape, 1e-300)
    norm, of_y0, of_y1, j1 = (np.zeros(x.shape) for _ in range(4))
    for n in range(_START, 0, -1):  # here `current` is J_n
        k, sign = n // 2, -1 if (n // 2) % 2 else 1
        if n % 2 == 0:
            norm = norm + 2 * current
            of_y0 = of_y0 + sign / k * current
        elif n > 1:
            of_y1 = of_y1 + sign * n / (k * (k + 1)) * current
        else:
            j1 = current
        after, current = current, 2 * n / x * current - after
        factor = np.where(np.absolute(current) > 1e150, 1e-250, 1.0)
        after, current, norm, of_y0, of_y1, j1 = (
            part * factor for part in (after, current, norm, of_y0, of_y1, j1)
        )
    norm = norm + current
    j0, j1, of_y0, of_y1 = (part / norm for part in (current, j1, of_y0, of_y1))
    logarithm = np.log(x / 2) + _EULER
    y0 = 2 / pi * (logarithm * j0 - 2 * of_y0)
    y1 = -2 / (pi * x) * j0 + 2 / pi * ((logarithm - 1) * j1 - of_y1)
    return j0, j1, y0, y1


def _far(order: int, x: Array) -> tuple[Array, Array]:
    """J and Y of an order beyond 25 (DLMF 10.17.3): cos and sin of x - pi / 4 - order pi / 2 times asymptotic series."""
    even, odd = _hankel_series(order, x, -1)
    sine, cosine = np.sin(x), np.cos(x)
    cosine, sine = (cosine + sine, sine - cosine) if order == 0 else (sine - cosine, -(cosine + sine))
    scale = 1 / np.sqrt(pi * x)
    return scale * (even * cosine - odd * sine), scale * (even * sine + odd * cosine)


def _bessel(order: int, x: Array, second: bool) -> Result:
    z = np.absolute(x)
    near = _near(np.clip(z, 1e-150, _FAR))[order + 2 * second]
    far = _far(order, np.maximum(z, _FAR))[int(second)]
    result = np.where(z <= _FAR, near, far)
    if second:
        return np.where(x > 0, result, np.where(x == 0, -np.inf, np.nan))
    return (
        np.where(z < 1e-150, 1.0, result) if order == 0 else np.where(z < 1e-150, x / 2, result * np.sign(x))
    )


@kernel("aten::special_bessel_j0", dtypes=REALS)
@quiet
def special_bessel_j0(x: Array) -> Result:
    x = floating(x)
    return narrow(_bessel(0, wide(x), second=False), x)


@kernel("aten::special_bessel_j1", dtypes=REALS)
@quiet
def special_bessel_j1(x: Array) -> Result:
    x = floating(x)
    return narrow(_bessel(1, wide(x), second=False), x)


@kernel("aten::special_bessel_y0", dtypes=REALS)
@quiet
def special_bessel_y0(x: Array) -> Result:
    x = floating(x)
    return narrow(_bessel(0, wide(x), second=True), x)


@kernel("aten::special_bessel_y1", dtypes=REALS)
@quiet
def special_bessel_y1(x: Array) -> Result:
    x = floating(x)
    return narrow(_bessel(1, wide(x), second=True), x)


@kernel("aten::special_spherical_bessel_j0", dtypes=REALS)
@quiet
def special_spherical_bessel_j0(x: Array) -> Result:
    """sin(x) / x, and 1 at 0."""
    x = floating(x)
    exact = wide(x)
    result = np.where(exact == 0, 1.0, np.sin(exact) / exact)
    return narrow(np.where(np.isinf(exact), 0.0, result), x)


# -- Airy's function ------------------------------------------------------------------------------------


def _airy_near(x: Array) -> Result:
    """The integral of exp(i (t^3 / 3 + x t)) along t = u + i / 2 over 2 pi (DLMF 9.5.4), which dies away as exp(-u^2 / 2)."""
    total, step = np.zeros(x.shape), 0.05
    for node in range(190):
        t = complex(node * step, 0.5)
        value = np.exp(1j * (t * t * t / 3) + 1j * t * x).real
        total = total + (value if node else 0.5 * value)
    return total * (step / pi)


@kernel("aten::special_airy_ai", dtypes=REALS)
@quiet
def special_airy_ai(x: Array) -> Result:
    """For x > 1.5 by K_1/3 (DLMF 9.6.2), below -12 by the asymptotic series (DLMF 9.7.9), between by the integral."""
    x = floating(x)
    exact = wide(x)
    right, left = np.maximum(exact, 1.5), np.maximum(-exact, 12.0)
    zeta = 2 / 3 * right * np.sqrt(right)
    decaying = np.sqrt(right / 3) / pi * scaled_k(1 / 3, zeta) * np.exp(-zeta)
    zeta = 2 / 3 * left * np.sqrt(left)
    even, odd = _hankel_series(1 / 3, zeta, -1)
    sine, cosine = np.sin(zeta), np.cos(zeta)
    waves = (even * (cosine + sine) - odd * (sine - cosine)) / (sqrt(2 * pi) * np.sqrt(np.sqrt(left)))
    near = _airy_near(np.clip(exact, -12.0, 1.5))
    return narrow(np.where(exact > 1.5, decaying, np.where(exact < -12, waves, near)), x)
