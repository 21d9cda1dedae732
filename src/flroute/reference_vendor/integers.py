"""What is special to integers and bool: bits, shifts and powers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.support import INTEGERS, REALS, Array, Result, axes, quiet, reduce
from flroute.vendor import Unsupported, kernel

BITS = (*INTEGERS, "bool")


def _of_bits(x: Any, y: Any) -> list[Any]:
    x, y = promoted(x, y)
    if x.dtype.kind == "f":
        raise Unsupported(f"bits of {x.dtype}")
    return [x, y]


def _of_integers(x: Any, y: Any) -> list[Any]:
    x, y = _of_bits(x, y)
    if x.dtype.kind == "b":
        raise Unsupported("shifts of bool")
    return [x, y]


@promoting("aten::bitwise_and.Tensor", dtypes=BITS)
def bitwise_and(x: Any, y: Any) -> Result:
    return np.bitwise_and(*_of_bits(x, y))


@promoting("aten::bitwise_or.Tensor", dtypes=BITS)
def bitwise_or(x: Any, y: Any) -> Result:
    return np.bitwise_or(*_of_bits(x, y))


@promoting("aten::bitwise_xor.Tensor", dtypes=BITS)
def bitwise_xor(x: Any, y: Any) -> Result:
    return np.bitwise_xor(*_of_bits(x, y))


@kernel("aten::bitwise_not", dtypes=BITS)
def bitwise_not(x: Array) -> Result:
    return np.bitwise_not(x)


@promoting(
    "aten::bitwise_left_shift.Tensor", "aten::__lshift__.Tensor", "aten::__lshift__.Scalar", dtypes=INTEGERS
)
def bitwise_left_shift(x: Any, y: Any) -> Result:
    return np.left_shift(*_of_integers(x, y))


@promoting(
    "aten::bitwise_right_shift.Tensor", "aten::__rshift__.Tensor", "aten::__rshift__.Scalar", dtypes=INTEGERS
)
def bitwise_right_shift(x: Any, y: Any) -> Result:
    return np.right_shift(*_of_integers(x, y))


@promoting("aten::gcd", dtypes=INTEGERS)
def gcd(x: Array, y: Array) -> Result:
    return np.gcd(*_of_integers(x, y))


@promoting("aten::lcm", dtypes=INTEGERS)
def lcm(x: Array, y: Array) -> Result:
    return np.lcm(*_of_integers(x, y))


@kernel("aten::hash_tensor", dtypes=REALS)
def hash_tensor(x: Array, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Result:
    """The exclusive or of the bits of all elements: as int64, floating ones as float64."""
    over = axes(list(dim), x.ndim)
    if mode != 0 or any(x.shape[d] == 0 for d in over):
        raise Unsupported(f"a hash of mode {mode} over dimensions {over} of shape {x.shape}")
    bits = x.astype(np.float64 if x.dtype.kind == "f" else np.int64).view(np.uint64)
    return reduce(np.bitwise_xor, bits, axis=over, keepdims=keepdim)


# -- powers -------------------------------------------------------------------------------------------


@kernel("aten::pow.Tensor_Tensor", "aten::pow.Tensor_Scalar", "aten::pow.Scalar")
@quiet
def pow_mixed(x: Any, exponent: Any) -> Result:
    """Powers of several dtypes, and of integers: 1 and -1 have negative powers, those of other integers are 0."""
    number = None if isinstance(exponent, np.ndarray) else exponent
    x, exponent = promoted(x, exponent)
    if x.dtype.kind == "f":
        return np.power(x, exponent, dtype=np.float64).astype(x.dtype)
    if x.dtype.kind == "b" or (number is not None and number < 0):
        raise Unsupported(f"{x.dtype} to the power of {exponent}")
    if x.dtype.kind == "u":
        return np.power(x, exponent)
    result = np.power(x, np.maximum(exponent, 0))
    of_negative = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (exponent % 2), 0))
    return np.where(exponent < 0, of_negative, result).astype(x.dtype)
