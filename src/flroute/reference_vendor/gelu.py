"""GELU and its gradient: ``x Phi(x)``, where Phi is the normal distribution function, or PyTorch's tanh formula for it.

In float32 both run as ``x / (1 + exp(-a(x)))``, as Phi is a logistic function of an odd function of x. The exponential is
the only costly pass.
"""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from flroute.reference_vendor.blocks import filled, in_blocks
from flroute.reference_vendor.error_functions import erfc_of_doubles
from flroute.reference_vendor.support import FLOATS, Array, Result, quiet
from flroute.vendor import Unsupported, kernel

_ROOT_HALF = sqrt(0.5)
_DENSITY = 1 / sqrt(2 * pi)

# log(Phi(x) / Phi(-x)) = x Q(x^2): a least-squares fit of Q for x^2 <= 31, weighed and reweighed (Lawson 1961) until
# x / (1 + exp(-x Q)) is off by no more than 4e-8 anywhere: less than PyTorch's own x (1 + erf(x / sqrt 2)) / 2.
# Beyond, Phi is 0 or 1 to within float32's rounding of that formula.
_LOGIT = (
    1.5957716703414917, 0.07266046106815338, -5.974778105155565e-05, -0.00011280123726464808,
    8.350788448296953e-06, -3.044919480998942e-07, 5.270835323756273e-09, -2.7792823598105088e-11,
)  # fmt: skip
_LAST_SQUARE = 31.0
# 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)
_LINEAR, _CUBIC = 2 * sqrt(2 / pi), 2 * sqrt(2 / pi) * 0.044715


_FAR = 10.0  # from here on the tanh formula's gradient is that of x or of 0, and exp does not overflow yet


def _into_minus_logit(out: Array, x: Array) -> None:
    square = np.square(x)
    np.minimum(square, filled(_LAST_SQUARE, x), out=square)
    np.multiply(square, -_LOGIT[-1], out=out)
    for coefficient in _LOGIT[-2:0:-1]:
        np.subtract(out, coefficient, out=out)
        np.multiply(out, square, out=out)
    np.subtract(out, _LOGIT[0], out=out)
    np.multiply(out, x, out=out)


def _into_minus_tanh_logit(out: Array, x: Array) -> None:
    np.square(x, out=out)
    np.multiply(out, -_CUBIC, out=out)
    np.subtract(out, _LINEAR, out=out)
    np.multiply(out, x, out=out)


def _into_one_plus_exp(out: Array) -> None:
    np.exp(out, out=out)
    np.add(out, 1, out=out)


def _normal(out: Array, x: Array) -> None:
    _into_minus_logit(out, x)
    _into_one_plus_exp(out)
    np.divide(x, out, out=out)


def _tanh(out: Array, x: Array) -> None:
    _into_minus_tanh_logit(out, x)
    _into_one_plus_exp(out)
    np.divide(x, out, out=out)


def _exact(out: Array, x: Array) -> None:
    np.multiply(0.5 * x, erfc_of_doubles(x * -_ROOT_HALF), out=out)


def _normal_slope(out: Array, gradient: Array, x: Array) -> None:
    """Phi(x) + x phi(x), where phi is the normal density."""
    _into_minus_logit(out, x)
    _into_one_plus_exp(out)
    np.divide(1, out, out=out)
    _add_density_and_scale(out, gradient, x)


def _exact_slope(out: Array, gradient: Array, x: Array) -> None:
    np.multiply(0.5, erfc_of_doubles(x * -_ROOT_HALF), out=out)
    _add_density_and_scale(out, gradient, x)


def _add_density_and_scale(out: Array, gradient: Array, x: Array) -> None:
    density = np.square(x)
    np.multiply(density, -0.5, out=density)
    np.exp(density, out=density)
    np.multiply(density, _DENSITY, out=density)
    np.multiply(density, x, out=density)
    np.add(out, density, out=out)
    np.multiply(out, gradient, out=out)


def _tanh_slope(out: Array, gradient: Array, x: Array) -> None:
    """s (1 + x a'(x) e s), where e = exp(-a(x)) and s = 1 / (1 + e); e s is 1 - s without its cancellation.

    Beyond +-10 it is 0 or 1, but for what x^3 would overflow to; of an infinity it is NaN, as on the host.
    """
    near = np.clip(x, -_FAR, _FAR)
    _into_minus_tanh_logit(out, near)
    e = np.exp(out)
    np.add(e, 1, out=out)
    np.divide(1, out, out=out)
    slope = np.square(near)
    np.multiply(slope, 3 * _CUBIC, out=slope)
    np.add(slope, _LINEAR, out=slope)
    np.multiply(slope, near, out=slope)
    np.multiply(e, out, out=e)
    np.multiply(slope, e, out=slope)
    np.add(slope, 1, out=slope)
    np.multiply(out, slope, out=out)
    np.add(out, np.subtract(x, x, out=slope), out=out)
    np.multiply(out, gradient, out=out)


def _check_approximate(approximate: str) -> bool:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"gelu with approximate={approximate!r}")
    return approximate == "tanh"


@kernel("aten::gelu", dtypes=FLOATS)
@quiet
def gelu(x: Array, *, approximate: str = "none") -> Result:
    if _check_approximate(approximate):
        return in_blocks(_tanh, x)
    return in_blocks(_exact if x.dtype.char == "d" else _normal, x)


@kernel("aten::gelu_backward", dtypes=FLOATS)
@quiet
def gelu_backward(gradient: Array, x: Array, *, approximate: str = "none") -> Result:
    if _check_approximate(approximate):
        return in_blocks(_tanh_slope, gradient, x)
    return in_blocks(_exact_slope if x.dtype.char == "d" else _normal_slope, gradient, x)
