"""Copies, fills and casts between all dtypes, those included that numpy lacks.

A bfloat16 array comes as uint16: the upper half of a float32's bits. A complex32 array comes as uint32: two float16.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.blocks import copy_into, pieces, row_major
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import EVERY, REALS, Array, Result, quiet
from flroute.vendor import Unsupported, kernel, numpy_dtype

CASTS = (*EVERY, "complex32")
_BFLOAT16, _COMPLEX32 = np.dtype(np.uint16), np.dtype(np.uint32)


def from_bfloat16(bits: Array) -> Array:
    """The same values in float32."""
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(x: Array) -> Array:
    """The nearest bfloat16, in the same order of dimensions; the even one of two that are as near, every NaN the quiet one.

    Adding 0x7fff to a float32's bits, or 0x8000 where the upper half is odd, carries into the upper half exactly when
    rounding goes up.
    """
    if x.ndim > 1 and not x.flags.c_contiguous:
        order = sorted(range(x.ndim), key=lambda dim: -abs(x.strides[dim]))
        return to_bfloat16(np.ascontiguousarray(x.transpose(order))).transpose(np.argsort(order))
    single = np.ascontiguousarray(x, np.float32).reshape(x.shape)
    out = empty(x.shape, _BFLOAT16)
    for half, some in pieces(out, single):
        bits = some.view(np.uint32)
        rounded = np.asarray(np.right_shift(bits, 16))
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, bits, out=rounded)
        np.right_shift(rounded, 16, out=rounded)
        np.copyto(half, rounded, casting="unsafe")
        if some.size and np.isnan(np.maximum.reduce(some, axis=None)):
            np.copyto(half, 0x7FC0, where=np.isnan(some))
    return out


def from_float16(x: Array) -> Array:
    """The same values in float32 and in the same order of dimensions; three times as fast as numpy's own cast of row-major ones.

    The bits of a float16 at their places in a float32 are its value less a factor of 2**112, denormal ones included.
    """
    if not x.flags.c_contiguous:
        return x.astype(np.float32)
    out = empty(x.shape, np.dtype(np.float32))
    for single, half in pieces(out, x):
        bits = single.view(np.int32)
        np.copyto(bits, half.view(np.int16))  # the sign fills the upper half
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _SIGN_EXPONENT_MANTISSA, out=bits)
        np.multiply(single, _TWO_TO_112, out=single)
        if (
            single.size
            and not -65536
            < np.minimum.reduce(single, axis=None)
            <= np.maximum.reduce(single, axis=None)
            < 65536
        ):
            np.copyto(single, half)  # infinities and NaN
    return out


_SIGN_EXPONENT_MANTISSA = np.int32(-0x70002000)
_TWO_TO_112 = np.float32(2.0**112)


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


_REALS = (*REALS, "float16", "bfloat16")


def stays(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> bool | str:
    """Whether a copy is on its tensor's own device and row-major like it: all that may change is the dtype."""
    if device not in (None, x.device):
        return f"a copy on {device}"
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return f"a copy in {memory_format}"
    return layout in (None, torch.strided) or f"a copy in {layout}"


def _stays_real(
    x: torch.Tensor, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **how: Any
) -> bool | str:
    if dtype is not None and dtype not in _REAL_TYPES:
        return f"a cast to {dtype}"
    return stays(x, device=device, **how)


_REAL_TYPES = frozenset(getattr(torch, name) for name in _REALS)


@kernel("aten::_to_copy", dtypes=_REALS, layouts=("contiguous",), when=_stays_real)
@quiet
def to_copy(
    x: Array,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Array:
    """A cast, in one op where PyTorch makes three of it; transfers are not a kernel's business."""
    wanted = x.dtype if dtype is None else _BFLOAT16 if dtype is torch.bfloat16 else numpy_dtype(dtype)
    known = cast(x, wanted)
    if known is not x and known.dtype == wanted:
        return np.asarray(known)
    out = empty(x.shape, wanted)
    copy_into(out, known)
    return out


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
