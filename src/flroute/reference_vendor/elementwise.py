"""Arithmetic, element by element."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from flroute.reference_vendor.blocks import in_blocks
from flroute.reference_vendor.support import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    Array,
    Result,
    binary,
    check_scalars,
    fast,
    floating,
    quiet,
    rounded,
    unary,
    wide,
)
from flroute.vendor import Unsupported, kernel


def _scaled(x: Array, y: Any, alpha: float, combine: np.ufunc) -> Result:
    """``combine(x, alpha * y)`` without an intermediate rounding: PyTorch uses a fused multiply-add."""
    check_scalars(x.dtype, y, alpha)
    if isinstance(y, np.ndarray):
        y = wide(y)
    return rounded(combine, x, fast.run(np.multiply, y, alpha), like=x)


@kernel("aten::add.Tensor", dtypes=FLOATS)
def add(x: Array, y: Any, *, alpha: float = 1) -> Result:
    if alpha == 1:
        return binary(np.add, x, y)
    return _scaled(x, y, alpha, np.add)


def check_no_bool(y: Any) -> None:
    """PyTorch subtracts no bool, not even where it would become a number.

    Raises:
        RuntimeError: in PyTorch's own words.
    """
    if y is True or y is False:
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
            "`~` or `logical_not()` operator instead."
        )


@kernel("aten::sub.Tensor", dtypes=FLOATS)
def sub(x: Array, y: Any, *, alpha: float = 1) -> Result:
    check_no_bool(y)
    if alpha == 1:
        return binary(np.subtract, x, y)
    return _scaled(x, y, alpha, np.subtract)


@kernel("aten::mul.Tensor", dtypes=FLOATS)
def mul(x: Array, y: Any) -> Result:
    return binary(np.multiply, x, y)


@kernel("aten::div.Tensor", dtypes=FLOATS)
def div(x: Array, y: Any) -> Result:
    return binary(np.true_divide, x, y)


@kernel("aten::add.Scalar", dtypes=FLOATS)
def add_scalar(x: Array, y: float, alpha: float = 1) -> Result:
    return binary(np.add, x, y * alpha)


@kernel("aten::sub.Scalar", dtypes=FLOATS)
def sub_scalar(x: Array, y: float, alpha: float = 1) -> Result:
    check_no_bool(y)
    return binary(np.subtract, x, y * alpha)


@kernel("aten::mul.Scalar", dtypes=FLOATS)
def mul_scalar(x: Array, y: float) -> Result:
    return binary(np.multiply, x, y)


@kernel("aten::div.Scalar", dtypes=FLOATS)
def div_scalar(x: Array, y: float) -> Result:
    return binary(np.true_divide, x, y)


@kernel("aten::rsub.Scalar", dtypes=FLOATS)
def rsub_scalar(x: Array, y: float, alpha: float = 1) -> Result:
    check_no_bool(y)
    if alpha == 1:
        return fast.run(np.subtract, y, x)
    return rounded(np.subtract, y, fast.run(np.multiply, wide(x), alpha), like=x)


@kernel("aten::add.Tensor", dtypes=INTEGERS)
def add_integers(x: Array, y: Any, *, alpha: int = 1) -> Result:
    if not isinstance(x, np.ndarray):
        raise Unsupported("a number as the first operand")
    check_scalars(x.dtype, y, alpha)
    return np.add(x, y) if alpha == 1 else np.add(x, np.multiply(y, alpha, dtype=x.dtype))


@kernel("aten::sub.Tensor", dtypes=INTEGERS)
def sub_integers(x: Array, y: Any, *, alpha: int = 1) -> Result:
    if not isinstance(x, np.ndarray):
        raise Unsupported("a number as the first operand")
    check_no_bool(y)
    check_scalars(x.dtype, y, alpha)
    return np.subtract(x, y) if alpha == 1 else np.subtract(x, np.multiply(y, alpha, dtype=x.dtype))


@kernel("aten::mul.Tensor", dtypes=INTEGERS)
def mul_integers(x: Any, y: Any) -> Result:
    if not isinstance(x, np.ndarray):
        x, y = y, x
    check_scalars(x.dtype, y)
    return np.multiply(x, y)


@kernel("aten::neg", dtypes=NUMBERS)
def neg(x: Array) -> Result:
    return np.negative(x)


@kernel("aten::abs", dtypes=NUMBERS)
def absolute(x: Array) -> Result:
    return np.absolute(x)


@kernel("aten::log", dtypes=REALS)
def log(x: Array) -> Result:
    return rounded(np.log, x, like=x)


@kernel("aten::log1p", dtypes=REALS)
def log1p(x: Array) -> Result:
    return rounded(np.log1p, x, like=x)


@kernel("aten::expm1", dtypes=REALS)
def expm1(x: Array) -> Result:
    return rounded(np.expm1, x, like=x)


@kernel("aten::sqrt", dtypes=REALS)
def sqrt(x: Array) -> Result:
    return unary(np.sqrt, floating(x))


@kernel("aten::rsqrt", dtypes=REALS)
@quiet
def rsqrt(x: Array) -> Result:
    return in_blocks(_rsqrt, floating(x))


def _rsqrt(out: Array, x: Array) -> None:
    np.sqrt(x, out=out)
    np.divide(1, out, out=out)


@kernel("aten::reciprocal", dtypes=REALS)
def reciprocal(x: Array) -> Result:
    return unary(np.reciprocal, floating(x))


@kernel("aten::sin", dtypes=REALS)
def sin(x: Array) -> Result:
    return rounded(np.sin, x, like=x)


@kernel("aten::cos", dtypes=REALS)
def cos(x: Array) -> Result:
    return rounded(np.cos, x, like=x)


@kernel("aten::floor", dtypes=FLOATS)
def floor(x: Array) -> Result:
    return np.floor(x)


@kernel("aten::ceil", dtypes=FLOATS)
def ceil(x: Array) -> Result:
    return np.ceil(x)


@kernel("aten::round", dtypes=FLOATS)
def nearest(x: Array) -> Result:
    return np.rint(x)


@kernel("aten::sign", "aten::sgn", dtypes=FLOATS)
def sign(x: Array) -> Result:
    # numpy's sign of NaN is NaN, PyTorch's is 0.
    return np.where(np.isnan(x), 0, fast.run(np.sign, x)).astype(x.dtype, copy=False)


@functools.cache
def _float32_is_accurate(ufunc: np.ufunc) -> bool:
    """Whether numpy's float32 loop of a ufunc of two operands is as good as rounding once: it depends on the processor."""
    x, y = np.linspace(0.01, 20, 2001, dtype="f"), np.linspace(-5, 5, 2001, dtype="f")
    exact = ufunc(x, y, dtype=np.float64)
    error = np.abs(ufunc(x, y) - exact)
    return bool(np.all(error <= 0.6 * np.spacing(exact.astype("f"))))


@kernel("aten::pow.Tensor_Scalar", dtypes=FLOATS)
@quiet
def pow_scalar(x: Array, exponent: float) -> Result:
    check_scalars(x.dtype, exponent)
    # The exponents that PyTorch treats apart, with its results for signed zeros and infinities.
    if exponent == 2:
        return unary(np.square, x)
    if exponent == 0.5:
        return fast.run(np.sqrt, x)
    if exponent == -1:
        return fast.run(np.reciprocal, x)
    if exponent == 3:
        return in_blocks(_cube, x)
    if exponent == -0.5:
        return rsqrt(x)
    if x.dtype.char == "f" and np.float32(exponent) == exponent and _float32_is_accurate(np.power):
        return fast.run(np.power, x, exponent)
    return rounded(np.power, x, exponent, like=x)


def _cube(out: Array, x: Array) -> None:
    np.square(x, out=out)
    np.multiply(out, x, out=out)


@kernel("aten::pow.Tensor_Tensor", dtypes=FLOATS)
def pow_tensor(x: Array, exponent: Array) -> Result:
    return rounded(np.power, x, exponent, like=x)


@kernel("aten::pow.Scalar", dtypes=FLOATS)
def pow_of_scalar(base: float, exponent: Array) -> Result:
    check_scalars(exponent.dtype, base)
    return rounded(np.power, base, exponent, like=exponent)


@kernel("aten::maximum", dtypes=REALS)
def maximum(x: Array, y: Array) -> Result:
    return np.maximum(x, y)


@kernel("aten::minimum", dtypes=REALS)
def minimum(x: Array, y: Array) -> Result:
    return np.minimum(x, y)


@kernel("aten::clamp", "aten::clamp.Tensor", dtypes=NUMBERS)
def clamp(x: Array, min: Any = None, max: Any = None) -> Result:
    check_scalars(x.dtype, min, max)
    if min is None:
        return fast.run(np.minimum, x, max)
    if max is None:
        return fast.run(np.maximum, x, min)
    return fast.run(np.minimum, fast.run(np.maximum, x, min), max)


@kernel("aten::clamp_min", "aten::clamp_min.Tensor", dtypes=NUMBERS)
def clamp_min(x: Array, min: Any) -> Result:
    return clamp(x, min, None)


@kernel("aten::clamp_max", "aten::clamp_max.Tensor", dtypes=NUMBERS)
def clamp_max(x: Array, max: Any) -> Result:
    return clamp(x, None, max)


@kernel("aten::lerp.Scalar", dtypes=FLOATS)
def lerp_scalar(start: Array, end: Array, weight: float) -> Result:
    return lerp(start, end, weight)


@kernel("aten::lerp.Tensor", dtypes=FLOATS)
@quiet
def lerp(start: Array, end: Array, weight: Any) -> Result:
    # PyTorch starts from the nearer end, so that a weight of 1 gives exactly `end`.
    difference = np.subtract(end, start)
    if not isinstance(weight, np.ndarray):
        if abs(weight) < 0.5:
            return np.add(start, np.multiply(difference, weight))
        return np.subtract(end, np.multiply(difference, 1 - weight))
    from_start = np.add(start, np.multiply(difference, weight))
    from_end = np.subtract(end, np.multiply(difference, np.subtract(1, weight)))
    return np.where(np.absolute(weight) < 0.5, from_start, from_end)


@kernel("aten::addcmul", dtypes=FLOATS)
@quiet
def addcmul(x: Array, y: Array, z: Array, *, value: float = 1) -> Result:
    product = np.multiply(y, z) if value == 1 else np.multiply(np.multiply(y, value), z)
    return np.add(x, product)


@kernel("aten::addcdiv", dtypes=FLOATS)
@quiet
def addcdiv(x: Array, y: Array, z: Array, *, value: float = 1) -> Result:
    quotient = np.true_divide(y if value == 1 else np.multiply(y, value), z)
    return np.add(x, quotient)
