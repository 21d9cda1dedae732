"""Trigonometric and hyperbolic functions and their inverses. In double precision, rounded once."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import REALS, Array, Result, floating, narrow, quiet, rounded, wide
from flroute.vendor import kernel


@kernel("aten::tan", dtypes=REALS)
def tan(x: Array) -> Result:
    return rounded(np.tan, x, like=x)


@kernel("aten::asin", dtypes=REALS)
def asin(x: Array) -> Result:
    return rounded(np.arcsin, x, like=x)


@kernel("aten::acos", dtypes=REALS)
def acos(x: Array) -> Result:
    return rounded(np.arccos, x, like=x)


@kernel("aten::atan", dtypes=REALS)
def atan(x: Array) -> Result:
    return rounded(np.arctan, x, like=x)


@promoting("aten::atan2", dtypes=REALS)
def atan2(x: Array, y: Array) -> Result:
    x, y = promoted(x, y, floats=True)
    return rounded(np.arctan2, x, y, like=x)


@kernel("aten::sinh", dtypes=REALS)
def sinh(x: Array) -> Result:
    return rounded(np.sinh, x, like=x)


@kernel("aten::cosh", dtypes=REALS)
def cosh(x: Array) -> Result:
    return rounded(np.cosh, x, like=x)


@kernel("aten::asinh", dtypes=REALS)
def asinh(x: Array) -> Result:
    return rounded(np.arcsinh, x, like=x)


@kernel("aten::acosh", dtypes=REALS)
def acosh(x: Array) -> Result:
    return rounded(np.arccosh, x, like=x)


@kernel("aten::atanh", dtypes=REALS)
def atanh(x: Array) -> Result:
    return rounded(np.arctanh, x, like=x)


@promoting("aten::hypot", dtypes=("float32", "float64"))
def hypot(x: Array, y: Array) -> Result:
    x, y = promoted(x, y)
    return rounded(np.hypot, x, y, like=x)


@kernel("aten::sinc", dtypes=REALS)
@quiet
def sinc(x: Array) -> Result:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = floating(x)
    angle = np.pi * wide(x)
    return narrow(np.where(x == 0, 1.0, np.sin(angle) / angle), x)
