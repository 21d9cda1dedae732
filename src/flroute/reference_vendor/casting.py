"""Copies, fills and casts between all dtypes, those included that numpy lacks.

A bfloat16 array comes as uint16: the upper half of a float32's bits. A complex32 array comes as uint32: two float16.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.blocks import copy_into, row_major
from flroute.reference_vendor.support import EVERY, Array, Result, quiet
from flroute.vendor import Unsupported, kernel

CASTS = (*EVERY, "complex32")
_BFLOAT16, _COMPLEX32 = np.dtype(np.uint16), np.dtype(np.uint32)


def from_bfloat16(bits: Array) -> Array:
    """The same values in float32."""
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(x: Array) -> Array:
    """The nearest bfloat16, the even one of two that are as near; every NaN becomes the quiet one.

    Adding 0x7fff to a float32's bits, or 0x8000 where the upper half is odd, carries into the upper half exactly when
    rounding goes up.
    """
    single = np.ascontiguousarray(x, np.float32).reshape(x.shape)
    bits = single.view(np.uint32)
    half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, half).astype(np.uint16)


def _known_to_numpy(x: Array) -> Array:
    if x.dtype == _BFLOAT16:
        return from_bfloat16(x)
    if x.dtype == _COMPLEX32:
        halves = np.ascontiguousarray(x).reshape(*x.shape, 1).view(np.float16)
        return halves.astype(np.float32).view(np.complex64).reshape(x.shape)
    return x


def _loses_imaginary_part(x: Array, dtype: np.dtype[Any]) -> bool:
    return x.dtype.kind == "c" and dtype.kind not in "bc" and dtype != _COMPLEX32


def cast(x: Array, dtype: np.dtype[Any]) -> Result:
    """``x`` as PyTorch casts it; complex numbers lose their imaginary part, but bool asks for both parts."""
    if x.dtype == dtype:
        return x
    x = _known_to_numpy(x)
    if _loses_imaginary_part(x, dtype):
        x = x.real
    if dtype == _BFLOAT16:
        return to_bfloat16(x)
    if dtype == _COMPLEX32:
        parts = np.stack([x.real, x.imag], axis=-1).astype(np.float16)
        return parts.view(np.uint32).reshape(x.shape)
    return x


def scalar(value: Any, dtype: np.dtype[Any]) -> Result:
    """A Python number as an element of ``dtype``.

    Raises:
        Unsupported: it does not fit; PyTorch says so itself.
    """
    if isinstance(value, np.ndarray):
        if value.ndim:
            raise Unsupported(f"a value of {value.ndim} dimensions")
        return cast(value, dtype).astype(dtype)
    if dtype.kind in "iu" and dtype not in (_BFLOAT16, _COMPLEX32):
        limits = np.iinfo(dtype)
        if isinstance(value, complex) or not limits.min <= value <= limits.max:  # a NaN is nowhere between
            raise Unsupported(f"the value {value!r} for a tensor of {dtype}")
        return np.asarray(int(value), dtype)
    if isinstance(value, complex) and dtype.kind != "c" and dtype != _COMPLEX32:
        raise Unsupported(f"the complex value {value!r} for a tensor of real numbers")
    if dtype == np.float16 and abs(value) > 65504 and abs(value) != float("inf"):
        raise Unsupported(f"the value {value!r} for a tensor of float16")
    return cast(np.asarray(value), dtype).astype(dtype)


@kernel("aten::copy_", dtypes=CASTS, mixed=True)
@quiet
def copy_(target: Array, source: Array, non_blocking: bool = False) -> None:
    if _loses_imaginary_part(source, target.dtype):
        warnings.warn("Casting complex values to real discards the imaginary part", stacklevel=2)
    copy_into(target, cast(source, target.dtype))


@kernel("aten::clone", dtypes=(*CASTS, "uint16", "uint32", "uint64"))
def clone(x: Array, *, memory_format: torch.memory_format | None = None) -> Array:
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        raise Unsupported(f"a copy in {memory_format}")
    return row_major(x)


@kernel("aten::fill_.Scalar", dtypes=CASTS)
@quiet
def fill_scalar_(target: Array, value: Any) -> None:
    target[...] = scalar(value, target.dtype)


@kernel("aten::fill_.Tensor", dtypes=CASTS, mixed=True)
@quiet
def fill_tensor_(target: Array, value: Array) -> None:
    if value.ndim:
        raise Unsupported(f"fill_ with a value of {value.ndim} dimensions")
    np.copyto(target, cast(value, target.dtype), casting="unsafe")


@kernel("aten::zero_", dtypes=(*CASTS, "uint16", "uint32", "uint64"))  # all zero bits in every dtype
def zero_(target: Array) -> None:
    target.fill(0)
