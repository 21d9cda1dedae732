"""Complex numbers: made, taken apart, and the arithmetic of tensors that hold them.

A complex64 function is computed in complex128 and rounded once, as float32 ones are in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.elementwise import check_no_bool
from flroute.reference_vendor.support import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    REALS,
    Array,
    Result,
    fast,
    narrow,
    quiet,
)
from flroute.vendor import kernel


def _joined(real: Array, imaginary: Array, dtype: Any) -> Array:
    out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), dtype)
    out.real, out.imag = real, imaginary
    return out


# -- made and taken apart -----------------------------------------------------------------------------


@kernel("aten::complex", dtypes=FLOATS)
def complex_from_parts(real: Array, imag: Array) -> Result:
    return _joined(real, imag, np.result_type(real.dtype, np.complex64))


@kernel("aten::polar", dtypes=FLOATS)
@quiet
def polar(abs: Array, angle: Array) -> Result:
    wide_angle = angle.astype(np.float64, copy=False)
    dtype = np.result_type(abs.dtype, np.complex64)
    return _joined(abs * np.cos(wide_angle), abs * np.sin(wide_angle), dtype)


@kernel("aten::angle", dtypes=COMPLEX)
def angle(x: Array) -> Result:
    return np.arctan2(x.imag, x.real)


@kernel("aten::angle", dtypes=(*FLOATS, *INTEGERS, "bool"))
def angle_of_real(x: Array) -> Result:
    """0 or pi, with the sign of zero not looked at, and NaN for NaN."""
    dtype = x.dtype if x.dtype.kind == "f" else np.float32
    result = np.where(np.less(x, 0), np.pi, 0).astype(dtype)
    return np.where(np.isnan(x), x, result).astype(dtype) if x.dtype.kind == "f" else result


@kernel("aten::sgn", dtypes=COMPLEX)
@quiet
def sgn_complex(x: Array) -> Result:
    """``x / |x|``, and 0 where ``x`` is."""
    size = np.absolute(x)
    return np.where(size == 0, 0, x / size).astype(x.dtype, copy=False)


@kernel(
    "aten::conj_physical", dtypes=COMPLEX
)  # of a real tensor PyTorch's composite returns the tensor itself
@kernel("aten::_conj_physical", dtypes=(*REALS, *COMPLEX))
def conj_physical(x: Array) -> Result:
    return np.conjugate(x)


# -- arithmetic ---------------------------------------------------------------------------------------


@kernel("aten::add.Tensor", dtypes=COMPLEX)
def add_complex(x: Any, y: Any, *, alpha: complex = 1) -> Result:
    return fast.run(np.add, x, y if alpha == 1 else fast.run(np.multiply, y, alpha))


@kernel("aten::sub.Tensor", dtypes=COMPLEX)
def sub_complex(x: Any, y: Any, *, alpha: complex = 1) -> Result:
    check_no_bool(y)
    return fast.run(np.subtract, x, y if alpha == 1 else fast.run(np.multiply, y, alpha))


@kernel("aten::mul.Tensor", dtypes=COMPLEX)
def mul_complex(x: Any, y: Any) -> Result:
    return fast.run(np.multiply, x, y)


@kernel("aten::div.Tensor", dtypes=COMPLEX)
def div_complex(x: Any, y: Any) -> Result:
    return fast.run(np.true_divide, x, y)


@kernel("aten::rsub.Scalar", dtypes=COMPLEX)
def rsub_complex(x: Array, y: complex, alpha: complex = 1) -> Result:
    check_no_bool(y)
    return fast.run(np.subtract, y, x if alpha == 1 else fast.run(np.multiply, x, alpha))


@kernel("aten::neg", dtypes=COMPLEX)
def neg_complex(x: Array) -> Result:
    return np.negative(x)


@kernel("aten::abs", dtypes=COMPLEX)
def abs_complex(x: Array) -> Result:
    return fast.run(np.absolute, x)


@kernel("aten::eq.Tensor", "aten::eq.Scalar", dtypes=COMPLEX)
def eq_complex(x: Array, y: Any) -> Result:
    return np.equal(x, y)


@kernel("aten::ne.Tensor", "aten::ne.Scalar", dtypes=COMPLEX)
def ne_complex(x: Array, y: Any) -> Result:
    return np.not_equal(x, y)


# -- functions ----------------------------------------------------------------------------------------


def _rounded(ufunc: np.ufunc, *operands: Any, like: Array) -> Result:
    """``ufunc`` in complex128, rounded once."""
    if like.dtype.char == "D":
        return fast.run(ufunc, *operands)
    out = np.empty_like(like, shape=np.broadcast(*operands).shape if len(operands) > 1 else like.shape)
    return fast.run(ufunc, *operands, out=out, dtype=np.complex128, casting="same_kind")


@kernel("aten::exp", dtypes=COMPLEX)
def exp_complex(x: Array) -> Result:
    return _rounded(np.exp, x, like=x)


@kernel("aten::log", dtypes=COMPLEX)
def log_complex(x: Array) -> Result:
    return _rounded(np.log, x, like=x)


@kernel("aten::sqrt", dtypes=COMPLEX)
def sqrt_complex(x: Array) -> Result:
    return _rounded(np.sqrt, x, like=x)


@kernel("aten::sin", dtypes=COMPLEX)
def sin_complex(x: Array) -> Result:
    return _rounded(np.sin, x, like=x)


@kernel("aten::cos", dtypes=COMPLEX)
def cos_complex(x: Array) -> Result:
    return _rounded(np.cos, x, like=x)


@kernel("aten::tanh", dtypes=COMPLEX)
def tanh_complex(x: Array) -> Result:
    return _rounded(np.tanh, x, like=x)


@kernel("aten::tan", dtypes=COMPLEX)
def tan_complex(x: Array) -> Result:
    return _rounded(np.tan, x, like=x)


@kernel("aten::sinh", dtypes=COMPLEX)
def sinh_complex(x: Array) -> Result:
    return _rounded(np.sinh, x, like=x)


@kernel("aten::cosh", dtypes=COMPLEX)
def cosh_complex(x: Array) -> Result:
    return _rounded(np.cosh, x, like=x)


@kernel("aten::asin", dtypes=COMPLEX)
def asin_complex(x: Array) -> Result:
    return _rounded(np.arcsin, x, like=x)


@kernel("aten::acos", dtypes=COMPLEX)
def acos_complex(x: Array) -> Result:
    return _rounded(np.arccos, x, like=x)


@kernel("aten::atan", dtypes=COMPLEX)
def atan_complex(x: Array) -> Result:
    return _rounded(np.arctan, x, like=x)


@kernel("aten::asinh", dtypes=COMPLEX)
def asinh_complex(x: Array) -> Result:
    return _rounded(np.arcsinh, x, like=x)


@kernel("aten::acosh", dtypes=COMPLEX)
def acosh_complex(x: Array) -> Result:
    return _rounded(np.arccosh, x, like=x)


@kernel("aten::atanh", dtypes=COMPLEX)
def atanh_complex(x: Array) -> Result:
    return _rounded(np.arctanh, x, like=x)


@kernel("aten::reciprocal", dtypes=COMPLEX)
def reciprocal_complex(x: Array) -> Result:
    return _rounded(np.true_divide, 1, x, like=x)


@kernel("aten::rsqrt", dtypes=COMPLEX)
@quiet
def rsqrt_complex(x: Array) -> Result:
    return narrow(1 / np.sqrt(x.astype(np.complex128, copy=False)), x)


@kernel("aten::pow.Tensor_Scalar", dtypes=COMPLEX)
def pow_complex_scalar(x: Array, exponent: complex) -> Result:
    if exponent == 2:
        return fast.run(np.square, x)
    return _rounded(np.power, x, exponent, like=x)


@kernel("aten::pow.Tensor_Tensor", dtypes=COMPLEX)
def pow_complex_tensor(x: Array, exponent: Array) -> Result:
    return _rounded(np.power, x, exponent, like=x)
