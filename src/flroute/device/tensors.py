"""Making device tensors, and seeing device memory from the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.device.address_space import POOLED
from flroute.device.capsule import VendorBlock, row_major, span_of, tensor_at, tensor_from_array
from flroute.device.dtypes import QUANTIZED, TORCH_DTYPES
from flroute.device.memory import DeviceArray
from flroute.device.out_of_memory import out_of_memory
from flroute.device.storage_memory import exchange_memory
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.errors import DeviceError
from flroute.torch_compat import HOST_KEYS, host_storage_at, neg_view

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset


def is_on_device(value: Any) -> bool:
    """Whether ``value`` is a tensor on an ``fl`` device."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def empty_strided(
    device: Device,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: torch.dtype,
    op: str = "aten::empty_strided",
) -> torch.Tensor:
    """An uninitialised tensor.

    Args:
        device: where it is to be.
        shape: sizes in elements.
        strides: in elements; ``None`` for row-major.
        dtype: any but quantized ones.
        op: what it is for, should there be no memory left.

    Raises:
        torch.OutOfMemoryError: the vendor's memory is full.
        DeviceError: a quantized dtype, which lives on the host only.
    """
    refuse_quantized(dtype)
    span = span_of(shape, row_major(shape) if strides is None else strides)
    nbytes = span * dtype.itemsize
    block = allocate(device, nbytes, op)
    return tensor_at(device, block.address, shape, strides, dtype, nbytes, block)


def allocate(device: Device, nbytes: int, op: str) -> VendorBlock:
    """A block of device memory, released when its owner drops it.

    Raises:
        torch.OutOfMemoryError: says how much was asked for, by ``op``, and where the memory is.
    """
    size = max(nbytes, 1)
    try:
        return VendorBlock(device, device.memory.allocate(device.vendor_index, size), size)
    except MemoryError as error:
        raise out_of_memory(device, size, op, error) from error


def resize_memory(storage: torch.UntypedStorage, device: Device, nbytes: int) -> None:
    """Give a storage this many bytes; what fits of what it holds stays. Every tensor over it sees that.

    Raises:
        torch.OutOfMemoryError: there is no room.
        DeviceError: this PyTorch keeps storages in a way of its own.
    """
    room = empty_strided(device, (nbytes,), None, torch.uint8, "storage.resize_").untyped_storage()
    kept = min(nbytes, storage.nbytes())
    if kept:
        index = device.vendor_index
        device.memory.copy_on_device(index, storage.data_ptr(), index, room.data_ptr(), kept)
    exchange_memory(storage, room)


def refuse_quantized(dtype: torch.dtype) -> None:
    """Quantized tensors carry a quantizer that only PyTorch's own backends can make."""
    if dtype in QUANTIZED:
        raise DeviceError(
            f"{dtype} tensors cannot live on {DEVICE_TYPE!r}: PyTorch keeps quantizers on its own backends. "
            f"Keep the tensor on the host, or move it dequantized: tensor.dequantize().to({DEVICE_TYPE!r})"
        )


def adopt_host(device: Device, host: torch.Tensor, *, share: bool = True) -> torch.Tensor:
    """A device tensor with the values and strides of ``host``; shares its memory where the device can, else copies.

    The caller gives ``host`` up: it must be nobody else's. ``share=False`` copies in any case.
    """
    refuse_quantized(host.dtype)
    if host.is_conj():
        return adopt_host(device, host.conj(), share=share).conj()
    if host.is_neg():
        return neg_view(adopt_host(device, host.resolve_neg().neg(), share=share))
    if not (share and device.memory.host_visible):
        return upload(device, host)
    shape, strides = host.shape, host.stride()
    nbytes = span_of(shape, strides) * host.dtype.itemsize
    return tensor_at(device, host.data_ptr(), shape, strides, host.dtype, nbytes, host)


def upload(device: Device, host: torch.Tensor) -> torch.Tensor:
    """A copy of ``host`` on ``device``, with its strides."""
    shape, strides = host.shape, host.stride()
    made = empty_strided(device, shape, strides, host.dtype, "a copy from the host")
    nbytes = span_of(shape, strides) * host.dtype.itemsize
    if nbytes:
        device.memory.copy_from_host(device.vendor_index, host.data_ptr(), made.data_ptr(), nbytes)
    return made


def to_device(host: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A copy of a host tensor on ``fl:index``, with its strides."""
    return upload(device_at(index), host.detach().resolve_conj().resolve_neg())


def adopt_array(device: Device, result: Any) -> torch.Tensor:
    """A device tensor out of what a kernel returned: a numpy array, a numpy scalar, or a ``DeviceArray``.

    An array that does not own its memory may be a view of an argument, whose memory it does not keep alive: it is copied.
    """
    if isinstance(result, DeviceArray):
        return _adopt_device_array(device, result)
    array = np.asarray(result)
    if not owns_its_memory(array) or not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    if array.flags.c_contiguous:
        return tensor_from_array(device, array)
    strides = [step // array.itemsize for step in array.strides]
    address = array.__array_interface__["data"][0]
    return tensor_at(device, address, array.shape, strides, TORCH_DTYPES[array.dtype], array.nbytes, array)


def owns_its_memory(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array, or the array it is a view of, allocated its memory itself or has it from a pool."""
    base: Any = array
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return base is POOLED or (base is None and bool(array.flags.owndata))


def _adopt_device_array(device: Device, result: DeviceArray) -> torch.Tensor:
    nbytes = span_of(result.shape, result.strides) * result.dtype.itemsize
    block = VendorBlock(device, result.address, max(nbytes, 1))
    return tensor_at(device, result.address, result.shape, result.strides, result.dtype, nbytes, block)


def settle(device: Device) -> None:
    """Before the host touches memory that it sees: wait for what kernels still do there."""
    if device.memory.host_visible:
        device.streams.synchronize(device.vendor_index)


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor over the memory of a host-visible device tensor, which must outlive it. Lazy bits are kept."""
    settle(device_at(tensor.device.index))
    storage = tensor.untyped_storage()
    return restrided(
        host_storage_at(storage.data_ptr(), storage.nbytes()), tensor, int(tensor.storage_offset())
    )


def host_address(tensor: torch.Tensor) -> int:
    """Where the host reads and writes a device tensor's memory; a DeviceError if its vendor keeps it out of reach."""
    device = device_at(tensor.device.index)
    if not device.memory.host_visible:
        raise DeviceError(
            f"the memory of {tensor.device} ({device.vendor_device}) is not visible to the host, "
            "so code on the host cannot use this tensor; copy it first: tensor.cpu()"
        )
    settle(device)
    return tensor.data_ptr()


def restrided(storage: torch.UntypedStorage, like: torch.Tensor, offset: int) -> torch.Tensor:
    """A host tensor over ``storage`` with the dtype, shape, strides and lazy bits of ``like``."""
    host = torch.empty(0, dtype=like.dtype, device="cpu")
    _set_storage.redispatch(HOST_KEYS, host, storage, offset, like.shape, like.stride())
    if like.is_conj():
        host = host.conj()
    if like.is_neg():
        host = torch.ops.aten._neg_view.default.redispatch(HOST_KEYS, host)
    return host


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The same elements under other strides (of dimensions where they mean nothing)."""
    return torch.ops.aten.as_strided.default.redispatch(HOST_KEYS, tensor, tensor.shape, strides)  # type: ignore[no-any-return]


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with one element of each dimension of stride 0: each memory location once, as ``copy_`` wants its target."""
    strides = tensor.stride()
    if 0 not in strides:
        return tensor
    shape = [size if step else min(size, 1) for size, step in zip(tensor.shape, strides, strict=True)]
    return torch.ops.aten.as_strided.default.redispatch(HOST_KEYS, tensor, shape, strides)  # type: ignore[no-any-return]


def restride(tensor: torch.Tensor, strides: Sequence[int]) -> None:
    """Give a tensor other strides within its memory, in place (metadata only)."""
    torch.ops.aten.as_strided_.default.redispatch(HOST_KEYS, tensor, tensor.shape, strides)


def with_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bytes under another dtype of the same width."""
    return torch.ops.aten.view.dtype.redispatch(HOST_KEYS, tensor, dtype)  # type: ignore[no-any-return]


def point_at(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Make ``tensor`` use the storage, offset, shape and strides of ``other`` (metadata only)."""
    _set_storage.redispatch(
        HOST_KEYS, tensor, other.untyped_storage(), other.storage_offset(), other.shape, other.stride()
    )


def view_of_storage(tensor: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    """A device tensor over the storage of ``tensor`` with the dtype, shape and strides of ``like``."""
    made = torch.ops.aten.alias.default.redispatch(HOST_KEYS, tensor)
    if made.dtype != like.dtype:
        made = torch.ops.aten.view.dtype.redispatch(HOST_KEYS, _as_bytes(made), like.dtype)
    return torch.ops.aten.as_strided.default.redispatch(HOST_KEYS, made, like.shape, like.stride(), offset)  # type: ignore[no-any-return]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.ops.aten.as_strided.default.redispatch(
        HOST_KEYS, tensor, (tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,), 0
    )
    return torch.ops.aten.view.dtype.redispatch(HOST_KEYS, flat, torch.uint8)  # type: ignore[no-any-return]
