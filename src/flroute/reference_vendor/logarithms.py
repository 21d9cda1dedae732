"""Logarithms and exponentials to other bases, and formulas made of a logarithm."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import (
    FLOATS,
    REALS,
    Array,
    Result,
    floating,
    narrow,
    quiet,
    rounded,
    wide,
)
from flroute.vendor import kernel


@kernel("aten::exp2", dtypes=REALS)
def exp2(x: Array) -> Result:
    return rounded(np.exp2, x, like=x)


@kernel("aten::log2", dtypes=REALS)
def log2(x: Array) -> Result:
    return rounded(np.log2, x, like=x)


@kernel("aten::log10", dtypes=REALS)
def log10(x: Array) -> Result:
    return rounded(np.log10, x, like=x)


@promoting("aten::logaddexp", dtypes=FLOATS)
def logaddexp(x: Array, y: Array) -> Result:
    x, y = promoted(x, y)
    return rounded(np.logaddexp, x, y, like=x)


@promoting("aten::logaddexp2", dtypes=FLOATS)
def logaddexp2(x: Array, y: Array) -> Result:
    x, y = promoted(x, y)
    return rounded(np.logaddexp2, x, y, like=x)


@promoting("aten::xlogy.Tensor", dtypes=REALS)
@quiet
def xlogy(x: Array, y: Array) -> Result:
    """x log(y), but 0 where x is 0 and y is a number."""
    x, y = promoted(x, y, floats=True)
    product = np.where((x == 0) & ~np.isnan(y), 0.0, wide(x) * np.log(wide(y)))
    return narrow(product, x)


@promoting("aten::special_xlog1py", dtypes=REALS)
@quiet
def special_xlog1py(x: Array, y: Array) -> Result:
    """x log(1 + y), but 0 where x is 0 and y is a number."""
    x, y = promoted(x, y, floats=True)
    product = np.where((x == 0) & ~np.isnan(y), 0.0, wide(x) * np.log1p(wide(y)))
    return narrow(product, x)


@kernel("aten::special_entr", dtypes=REALS)
@quiet
def special_entr(x: Array) -> Result:
    """Entropy: -x log(x), continued by 0 at 0 and -inf below."""
    x = floating(x)
    exact = wide(x)
    entropy = np.where(x == 0, 0.0, -exact * np.log(exact))
    return narrow(np.where(x < 0, -np.inf, entropy), x)


@kernel("aten::logit", dtypes=REALS)
@quiet
def logit(x: Array, eps: float | None = None) -> Result:
    """log(x / (1 - x)), of x kept between eps and 1 - eps if there is one."""
    x = floating(x)
    probability = wide(x) if eps is None else np.minimum(np.maximum(wide(x), eps), 1 - eps)
    return narrow(np.log(probability / (1 - probability)), x)


@kernel("aten::logit_backward", dtypes=FLOATS)
@quiet
def logit_backward(gradient: Array, x: Array, eps: float | None = None) -> Result:
    low, high, outside = (0.0, 1.0, np.nan) if eps is None else (eps, 1 - eps, 0.0)
    probability = wide(x)
    slope = gradient / (probability * (1 - probability))
    return narrow(np.where((x < low) | (x > high), outside, slope), x)
