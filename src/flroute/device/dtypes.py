"""How dtypes are named in DLPack and in numpy."""

from __future__ import annotations

import numpy as np
import torch

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode


def _dlpack(code: int, bits: int) -> int:
    """DLDataType {uint8 code, uint8 bits, uint16 lanes = 1} as one little-endian word."""
    return code | bits << 8 | 1 << 16


DLPACK_CODES: dict[torch.dtype, int] = {
    torch.bool: _dlpack(_BOOL, 8),
    torch.uint8: _dlpack(_UINT, 8),
    torch.uint16: _dlpack(_UINT, 16),
    torch.uint32: _dlpack(_UINT, 32),
    torch.uint64: _dlpack(_UINT, 64),
    torch.int8: _dlpack(_INT, 8),
    torch.int16: _dlpack(_INT, 16),
    torch.int32: _dlpack(_INT, 32),
    torch.int64: _dlpack(_INT, 64),
    torch.float16: _dlpack(_FLOAT, 16),
    torch.float32: _dlpack(_FLOAT, 32),
    torch.float64: _dlpack(_FLOAT, 64),
    torch.bfloat16: _dlpack(_BFLOAT, 16),
    torch.complex32: _dlpack(_COMPLEX, 32),
    torch.complex64: _dlpack(_COMPLEX, 64),
    torch.complex128: _dlpack(_COMPLEX, 128),
}
"""Dtypes a DLPack capsule can carry; the others travel as unsigned integers of their width."""

CARRIERS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
"""By item size in bytes: what carries a dtype that DLPack does not know."""

NUMPY_DTYPES: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.bool: np.dtype("?"),
    torch.uint8: np.dtype("u1"),
    torch.uint16: np.dtype("u2"),
    torch.uint32: np.dtype("u4"),
    torch.uint64: np.dtype("u8"),
    torch.int8: np.dtype("i1"),
    torch.int16: np.dtype("i2"),
    torch.int32: np.dtype("i4"),
    torch.int64: np.dtype("i8"),
    torch.float16: np.dtype("f2"),
    torch.float32: np.dtype("f4"),
    torch.float64: np.dtype("f8"),
    torch.complex64: np.dtype("c8"),
    torch.complex128: np.dtype("c16"),
}
"""Dtypes that numpy has too."""

NUMPY_CARRIERS: dict[torch.dtype, np.dtype[np.generic]] = {
    **NUMPY_DTYPES,
    torch.bfloat16: np.dtype("u2"),
    torch.complex32: np.dtype("u4"),
}
"""For each dtype of ``DLPACK_CODES``, a numpy dtype of the same width."""

TORCH_DTYPES: dict[np.dtype[np.generic], torch.dtype] = {n: t for t, n in NUMPY_DTYPES.items()}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[np.generic]:
    """The numpy dtype with the same name and layout.

    Raises:
        TypeError: numpy has no such type (bfloat16, float8, complex32, sub-byte types).

    Example:
        >>> numpy_dtype(torch.float32)
        dtype('float32')
    """
    try:
        return NUMPY_DTYPES[dtype]
    except KeyError:
        raise TypeError(f"numpy has no dtype for {dtype}; declare the kernel's dtypes without it") from None


QUANTIZED = frozenset(
    dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype) and name.startswith("q")
)
"""Dtypes whose tensors carry a quantizer; ``torch.quint8`` begins with a q like the others."""
