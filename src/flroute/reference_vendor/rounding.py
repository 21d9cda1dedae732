"""Rounding, division with a remainder, and the parts of floating-point numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    Array,
    Result,
    fast,
    quiet,
)
from flroute.vendor import Unsupported, kernel


def depends_on_dtype(*_: Any, **__: Any) -> bool:
    """A predicate that admits all; what float32 says of the next number or the largest does not hold for float16."""
    return True


@kernel("aten::trunc", dtypes=FLOATS)
def trunc(x: Array) -> Result:
    return np.trunc(x)


@kernel("aten::floor", "aten::ceil", "aten::round", "aten::trunc", dtypes=INTEGERS)
def round_integers(x: Array) -> Result:
    return x.copy()


@kernel("aten::frac", dtypes=FLOATS)
@quiet
def frac(x: Array) -> Result:
    return np.subtract(x, np.trunc(x))


@kernel("aten::round.decimals", dtypes=FLOATS)
@quiet
def round_decimals(x: Array, *, decimals: int) -> Result:
    scale = x.dtype.type(10.0 ** abs(decimals))
    if decimals < 0:
        return np.rint(x / scale) * scale
    return np.rint(x * scale) / scale if decimals else np.rint(x)


# -- division -----------------------------------------------------------------------------------------


def _check_divisor(x: Array, y: Array) -> None:
    """Raises RuntimeError: an integer division by zero, in PyTorch's words; nothing can be divided by it."""
    if y.dtype.kind in "iu" and not np.all(y) and np.broadcast(x, y).size:
        raise RuntimeError("ZeroDivisionError")


def _division_operands(x: Any, y: Any) -> list[Any]:
    x, y = promoted(x, y)
    if x.dtype.kind not in "fiu":
        raise Unsupported(f"division with a remainder of {x.dtype}")
    _check_divisor(x, y)
    return [x, y]


@promoting("aten::floor_divide", dtypes=NUMBERS)
@quiet
def floor_divide(x: Any, y: Any) -> Result:
    return np.floor_divide(*_division_operands(x, y))


@promoting("aten::div.Tensor_mode", dtypes=REALS)
@quiet
def div_rounded(x: Any, y: Any, *, rounding_mode: str | None) -> Result:
    if rounding_mode is None:
        return np.true_divide(*promoted(x, y, floats=True))
    if rounding_mode not in ("floor", "trunc"):
        raise Unsupported(f"rounding_mode={rounding_mode!r}")
    if rounding_mode == "floor":
        return floor_divide(x, y)
    x, y = _division_operands(x, y)
    if x.dtype.kind == "f":
        return np.trunc(np.true_divide(x, y))
    quotient = np.floor_divide(x, y)
    inexact = quotient * y != x
    return quotient + (inexact & ((x < 0) != (y < 0))).astype(x.dtype)


@promoting("aten::fmod.Tensor", dtypes=NUMBERS)
def fmod(x: Any, y: Any) -> Result:
    """The remainder with the sign of the dividend."""
    x, y = _division_operands(x, y)
    return fast.run(np.fmod, x, y)


@promoting("aten::remainder.Tensor", "aten::remainder.Scalar_Tensor", dtypes=NUMBERS)
@quiet
def remainder(x: Any, y: Any) -> Result:
    """The remainder with the sign of the divisor; a zero has the dividend's."""
    x, y = _division_operands(x, y)
    result = np.asarray(np.remainder(x, y))
    if result.dtype.kind == "f":
        np.copysign(result, x, out=result, where=result == 0)
    return result


# -- parts of floats ----------------------------------------------------------------------------------


@kernel("aten::frexp.Tensor", dtypes=FLOATS)
def frexp(x: Array) -> tuple[Any, Any]:
    mantissa, exponent = np.frexp(x)
    return mantissa, exponent.astype(np.int32, copy=False)


@promoting("aten::copysign.Tensor", dtypes=REALS)
def copysign(x: Any, y: Any) -> Result:
    return np.copysign(*promoted(x, y, floats=True))


@kernel("aten::nextafter", dtypes=FLOATS, when=depends_on_dtype)
def nextafter(x: Array, y: Array) -> Result:
    return fast.run(np.nextafter, x, y)


@kernel("aten::signbit", dtypes=REALS)
def signbit(x: Array) -> Result:
    return np.signbit(x) if x.dtype.kind == "f" else np.less(x, 0)


@kernel("aten::sign", "aten::sgn", dtypes=(*INTEGERS, "bool"))
def sign_integers(x: Array) -> Result:
    return x.copy() if x.dtype.kind == "b" else np.sign(x)


@kernel("aten::isneginf", dtypes=REALS)
def isneginf(x: Array) -> Result:
    return np.isinf(x) & (np.asarray(x) < 0)


@kernel("aten::isposinf", dtypes=REALS)
def isposinf(x: Array) -> Result:
    return np.isinf(x) & (np.asarray(x) > 0)


@kernel("aten::isfinite", dtypes=(*INTEGERS, "bool"))
def isfinite_integers(x: Array) -> Result:
    return np.ones(x.shape, np.bool_)


@kernel("aten::nan_to_num", dtypes=REALS, when=depends_on_dtype)
@quiet
def nan_to_num(
    x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Result:
    if x.dtype.kind != "f":
        return x.copy()
    limits = np.finfo(x.dtype)
    result = np.where(np.isnan(x), x.dtype.type(nan or 0.0), x)
    result[x == np.inf] = limits.max if posinf is None else posinf
    result[x == -np.inf] = limits.min if neginf is None else neginf
    return result


@promoting("aten::fmax", dtypes=REALS)
def fmax(x: Array, y: Array) -> Result:
    return np.fmax(*promoted(x, y))


@promoting("aten::fmin", dtypes=REALS)
def fmin(x: Array, y: Array) -> Result:
    return np.fmin(*promoted(x, y))


@kernel("aten::heaviside", dtypes=REALS)
def heaviside(x: Array, values: Array) -> Result:
    return np.where(x == 0, values, (x > 0).astype(x.dtype))


@kernel("aten::threshold", dtypes=NUMBERS)
def threshold(x: Array, threshold: float, value: float) -> Result:
    return np.where(x <= threshold, np.asarray(value).astype(x.dtype), x)
