"""Device tensors out of DLPack capsules: any address, any device index, exact accounting.

DLPack has a device code for out-of-tree devices, kDLExtDev, which PyTorch maps to PrivateUse1. numpy exports an
array (``ndarray.__dlpack__``), the capsule is relabelled, PyTorch imports it: a real, strided, reference-counted
tensor on ``fl``. The array dies when the last alias of the tensor's storage does.

numpy's deleter (array_dlpack_deleter in numpy/_core/src/multiarray/dlpack.c) drops a reference to the array, under the
GIL, and does nothing once the interpreter has ended. What must happen when a tensor dies therefore hangs on the *array's*
death, a weakref callback or ``Block.__del__``: CPython sets a pending exception aside for these. A ctypes deleter would
swallow it: tensors die while the error of a kernel unwinds through PyTorch's C++.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.dtypes import CARRIERS, DLPACK_CODES, NUMPY_CARRIERS
from flroute.device.table import Device, MemoryStats
from flroute.errors import CompatibilityError
from flroute.torch_compat import HOST_KEYS, from_dlpack

_KDL_CPU = 1
_KDL_EXT_DEV = 12
_CAPSULE_POINTER_AT = 16  # PyCapsule (Objects/capsule.c): object header, then the pointer
_DEVICE_AT = 8  # DLTensor (dlpack.h): data, {device type, device id}, ndim, dtype
_VERSIONED_AT = 32  # DLManagedTensorVersioned: version, manager, deleter and flags come first
_DTYPE_AT = 20
_STRIDES_AT = 32
_ROW_MAJOR = 0  # no strides at all

_read_word = struct.Struct("Q").unpack_from
_write_word = struct.Struct("Q").pack_into
_write_half = struct.Struct("I").pack_into


def _check_capsule_layout() -> None:
    capsule = np.zeros(1).__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if _read_word(MEMORY, id(capsule) + _CAPSULE_POINTER_AT - BASE)[0] != pointer(capsule, b"dltensor"):
        raise CompatibilityError(
            "this Python lays out capsules in a way flroute does not know; use CPython 3.10 or newer with the GIL"
        )


_check_capsule_layout()


class Block(np.ndarray[Any, Any]):
    """An array over memory that numpy does not own, and what is to happen when it is no longer used."""

    stats: MemoryStats
    accounted: int
    owner: Any

    def __del__(self) -> None:
        stats = self.stats
        stats.allocated -= self.accounted
        release = getattr(self.owner, "release", None)
        if release is not None:
            release()


class VendorBlock:
    """Memory that a vendor allocated, to be given back when its tensor dies."""

    __slots__ = ("address", "device", "nbytes")

    def __init__(self, device: Device, address: int, nbytes: int) -> None:
        self.device, self.address, self.nbytes = device, address, nbytes

    def release(self) -> None:
        """Give the memory back to the vendor."""
        self.device.memory.free(self.device.vendor_index, self.address, self.nbytes)


_counted: dict[int, tuple[weakref.ref[Any], MemoryStats, int]] = {}
_weakref = weakref.ref


def _array_died(reference: weakref.ref[Any], counted: Any = _counted) -> None:
    _, stats, nbytes = counted.pop(id(reference))
    stats.allocated -= nbytes


def relabel_for_host(capsule: Any) -> None:
    """Say of an exported capsule of a device tensor that its memory is the host's, which is true where the host sees it."""
    versioned = "versioned" in repr(capsule)
    header = _read_word(MEMORY, id(capsule) + _CAPSULE_POINTER_AT - BASE)[0] - BASE
    _write_word(MEMORY, header + (_VERSIONED_AT if versioned else 0) + _DEVICE_AT, _KDL_CPU)


def tensor_from_array(device: Device, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor on ``device`` that takes over a numpy array which owns its memory.

    Args:
        device: where the tensor is to be.
        array: row-major, of a dtype PyTorch has.
    """
    capsule = array.__dlpack__()
    header = _read_word(MEMORY, id(capsule) + _CAPSULE_POINTER_AT - BASE)[0] - BASE
    _write_word(MEMORY, header + _DEVICE_AT, _KDL_EXT_DEV | device.index << 32)
    _write_word(MEMORY, header + _STRIDES_AT, _ROW_MAJOR)
    nbytes = array.nbytes
    reference = _weakref(array, _array_died)
    stats = device.stats
    _counted[id(reference)] = (reference, stats, nbytes)
    allocated = stats.allocated = stats.allocated + nbytes
    if allocated > stats.peak:  # noqa: PLR1730 -- no call on the hot path
        stats.peak = allocated
    return from_dlpack(capsule)


def tensor_at(
    device: Device,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: torch.dtype,
    nbytes: int,
    owner: Any,
) -> torch.Tensor:
    """A tensor on ``device`` over memory that ``owner`` keeps alive.

    Args:
        device: where the tensor is to be.
        address: of the first element; the host need not be able to read it.
        shape: sizes in elements.
        strides: in elements, not negative; ``None`` for row-major.
        dtype: any dtype PyTorch has but quantized ones.
        nbytes: bytes to account for, while any alias of the tensor lives.
        owner: dropped when the last alias dies; a ``VendorBlock`` is also released.
    """
    carrier = NUMPY_CARRIERS.get(dtype)
    if carrier is None:
        return _tensor_of_unusual_dtype(device, address, shape, strides, dtype, nbytes, owner)
    offset = max(address - BASE, 0)  # an empty host tensor is at address 0
    if strides is None:
        array = Block(shape, carrier, MEMORY, offset)
    else:
        itemsize = carrier.itemsize
        array = Block(shape, carrier, MEMORY, offset, [itemsize * stride for stride in strides])
    stats = array.stats = device.stats
    array.accounted = nbytes
    array.owner = owner
    allocated = stats.allocated = stats.allocated + nbytes
    if allocated > stats.peak:  # noqa: PLR1730 -- no call on the hot path
        stats.peak = allocated
    capsule = array.__dlpack__()
    header = _read_word(MEMORY, id(capsule) + _CAPSULE_POINTER_AT - BASE)[0] - BASE
    _write_word(MEMORY, header + _DEVICE_AT, _KDL_EXT_DEV | device.index << 32)
    _write_half(MEMORY, header + _DTYPE_AT, DLPACK_CODES[dtype])
    contiguous = array.flags.c_contiguous
    if contiguous:
        _write_word(MEMORY, header + _STRIDES_AT, _ROW_MAJOR)
    made = from_dlpack(capsule)
    if strides is None or not contiguous or made.stride() == tuple(strides):
        return made
    # numpy has strides of its own for empty arrays and dimensions of size 1, where they mean nothing
    return torch.ops.aten.as_strided.default.redispatch(HOST_KEYS, made, shape, strides)  # type: ignore[no-any-return]


def _tensor_of_unusual_dtype(
    device: Device,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: torch.dtype,
    nbytes: int,
    owner: Any,
) -> torch.Tensor:
    """A dtype that DLPack cannot carry travels as unsigned integers of its width, then its view changes the dtype."""
    if strides is None:
        strides = row_major(shape)
    flat = tensor_at(
        device, address, (span_of(shape, strides),), None, CARRIERS[dtype.itemsize], nbytes, owner
    )
    typed = torch.ops.aten.view.dtype.redispatch(HOST_KEYS, flat, dtype)
    return torch.ops.aten.as_strided.default.redispatch(HOST_KEYS, typed, shape, strides)  # type: ignore[no-any-return]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, as PyTorch computes them (a size of 0 counts as 1)."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements between the first and the last one, both included; 0 for an empty tensor.

    Example:
        >>> span_of((2, 3), (10, 1))
        13
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
