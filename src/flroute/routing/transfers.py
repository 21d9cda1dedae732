"""What the device does itself, for every vendor: allocate, resize, and move data between host and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flroute.device.capsule import row_major, span_of
from flroute.device.dtypes import CARRIERS, DLPACK_CODES
from flroute.device.storage_memory import can_exchange_memory, exchange_memory
from flroute.device.table import DEVICE_TYPE, Device, current_index, device_at
from flroute.device.tensors import empty_strided, host_alias, restrided, settle
from flroute.errors import DeviceError, StreamError
from flroute.torch_compat import HOST_KEYS, storage_use_count


class Moved:
    """Bytes a copy moved."""

    __slots__ = ("to_device", "to_host")

    def __init__(self) -> None:
        self.to_host = self.to_device = 0


def device_of_factory(device: torch.device | None) -> Device:
    """The device a factory call means; no index means the current one."""
    index = device.index if device is not None and device.index is not None else current_index()
    return device_at(index)


def empty_memory_format(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``aten::empty.memory_format``."""
    _refuse_pinned(pin_memory)
    _refuse_layout(layout)
    strides = None
    if memory_format is not None and memory_format not in (torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    _check_sizes(size)
    dtype = dtype or torch.get_default_dtype()
    return empty_strided(device_of_factory(device), size, strides, dtype, "aten::empty.memory_format")


def empty_with_strides(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """``aten::empty_strided``."""
    _refuse_pinned(pin_memory)
    _refuse_layout(layout)
    _check_sizes(size)
    return empty_strided(device_of_factory(device), size, stride, dtype or torch.get_default_dtype())


def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """``aten::record_stream``: the block is not handed out again before the work on ``stream`` is done.

    Raises:
        StreamError: the stream is of another device.
    """
    device = device_at(tensor.device.index)
    if stream.device != tensor.device:
        raise StreamError(
            f"record_stream of a tensor on {device.name} was given a stream of {stream.device}: "
            f"give it one of the tensor's device, torch.fl.Stream({device.name!r})"
        )
    storage = tensor.untyped_storage()
    device.streams.use(device.vendor_index, stream.stream_id, storage.data_ptr(), storage.nbytes())


def _check_sizes(size: list[int]) -> None:
    if any(s < 0 for s in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")


def _refuse_pinned(pin_memory: bool | None) -> None:
    if pin_memory:
        raise DeviceError(
            f"only host tensors can be pinned; create it without device={DEVICE_TYPE!r}, or without pin_memory"
        )


def _refuse_layout(layout: torch.layout | None) -> None:
    if layout not in (None, torch.strided):
        raise DeviceError(
            f"{DEVICE_TYPE!r} tensors are strided; {layout} tensors live on the host: leave out device="
        )


def resize(
    tensor: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """``aten::resize_``: within the storage if the new size fits; else the storage grows, and every tensor over it sees that.

    Raises:
        DeviceError: it has to grow, other tensors share its storage, and this PyTorch keeps storages in a way of its own.
        RuntimeError: a negative size.
    """
    _check_sizes(size)
    if tuple(size) == tuple(tensor.shape) and memory_format is None:
        return tensor
    strides: Any = row_major(size)
    if memory_format is not None and memory_format not in (torch.contiguous_format, torch.preserve_format):
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
    give_geometry((tensor, size, strides))
    return tensor


Geometry = tuple[torch.Tensor, Sequence[int], Sequence[int]]
"""A tensor, and the sizes and strides it is to have."""


def give_geometry(*wanted: Geometry) -> None:
    """Give tensors other sizes and strides; their storages grow if they need it. All of them, or none if one has no room.

    Raises:
        DeviceError: see ``resize``.
        torch.OutOfMemoryError: there is no room for one of them.
    """
    rooms = [_room_for(*geometry) for geometry in wanted]
    for (tensor, size, strides), room in zip(wanted, rooms, strict=True):
        storage = tensor.untyped_storage() if room is None else _moved_to(room, tensor)
        torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
            HOST_KEYS, tensor, storage, int(tensor.storage_offset()), size, strides
        )


def _room_for(
    tensor: torch.Tensor, size: Sequence[int], strides: Sequence[int]
) -> torch.UntypedStorage | None:
    """A storage for a tensor of this geometry, if its own is too small."""
    storage, span = tensor.untyped_storage(), span_of(size, strides)
    needed = (int(tensor.storage_offset()) + span) * tensor.dtype.itemsize
    if not span or needed <= storage.nbytes():
        return None
    sharers = storage_use_count(storage) - 2  # the tensor's own and ours
    if sharers > 0 and not can_exchange_memory():
        raise DeviceError(
            f"a {tuple(tensor.shape)} tensor on {tensor.device} needs {needed} bytes to be resized, {storage.nbytes()} are there, "
            f"and {sharers} other tensor(s) share its storage: they would be left behind. Resize a clone(), or make the "
            f"tensor large enough first"
        )
    device = device_at(tensor.device.index)
    return empty_strided(device, (needed,), None, torch.uint8, "aten::resize_").untyped_storage()


def _moved_to(room: torch.UntypedStorage, tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage of a tensor, given the memory of ``room`` if it can be; else ``room``. What it holds moves along."""
    storage, device = tensor.untyped_storage(), device_at(tensor.device.index)
    if storage.nbytes() >= room.nbytes():  # another tensor over it has made it grow
        return storage
    if storage.nbytes():
        device.memory.copy_on_device(
            device.vendor_index, storage.data_ptr(), device.vendor_index, room.data_ptr(), storage.nbytes()
        )
    if not can_exchange_memory():
        return room
    exchange_memory(storage, room)
    return storage


def read_scalar(tensor: torch.Tensor) -> Any:
    """``aten::_local_scalar_dense``: the one element, as a Python number."""
    device = device_at(tensor.device.index)
    if not tensor.data_ptr():
        return torch.zeros((), dtype=tensor.dtype, device="cpu").item()
    settle(device)
    host = torch.empty(1, dtype=tensor.dtype, device="cpu")
    device.memory.copy_to_host(device.vendor_index, tensor.data_ptr(), host.data_ptr(), tensor.dtype.itemsize)
    if tensor.is_conj():
        host = host.conj()
    if tensor.is_neg():
        host = -host
    return host.reshape(()).item()


def is_plain_copy(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Same dtype, shape and strides, dense, no lazy bits: the bytes of one are the bytes of the other."""
    return (
        source.dtype == target.dtype
        and source.shape == target.shape
        and source.is_conj() == target.is_conj()
        and source.is_neg() == target.is_neg()
        and source.data_ptr() != 0
        and (
            (source.is_contiguous() and target.is_contiguous())
            or (
                source.stride() == target.stride()
                and span_of(source.shape, source.stride()) == source.numel()
            )
        )
    )


def moves_within_memory(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether the device itself can store ``source`` in ``target``: memory the host sees, or the same bytes."""
    return (
        device_at(target.device.index).memory.host_visible
        or is_plain_copy(source, target)
        or not target.numel()
    )


def move(source: torch.Tensor, target: torch.Tensor, moved: Moved) -> None:
    """Copy between the host and a device, or between two devices, converting dtype and broadcasting as ``copy_`` does."""
    if source.shape != target.shape:
        source = source.expand(target.shape)
    if not target.numel():
        return
    if source.dtype == target.dtype and source.dtype not in DLPACK_CODES:
        source, target = _as_integers(source), _as_integers(target)  # PyTorch cannot copy every dtype it has
    from_device, to_device = source.device.type == DEVICE_TYPE, target.device.type == DEVICE_TYPE
    for tensor in (source, target):
        if tensor.device.type == DEVICE_TYPE:
            settle(device_at(tensor.device.index))
    if from_device and to_device and _move_within_vendor(source, target):
        return
    host = _download(source, moved) if from_device else source
    if to_device:
        _upload(host, target, moved)
    else:
        target.copy_(host)


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.view.dtype.redispatch(HOST_KEYS, tensor, CARRIERS[tensor.dtype.itemsize])  # type: ignore[no-any-return]


def _move_within_vendor(source: torch.Tensor, target: torch.Tensor) -> bool:
    here, there = device_at(source.device.index), device_at(target.device.index)
    if here.vendor != there.vendor or not is_plain_copy(source, target):
        return False
    here.memory.copy_on_device(
        here.vendor_index, source.data_ptr(), there.vendor_index, target.data_ptr(),
        source.numel() * source.dtype.itemsize,
    )  # fmt: skip
    return True


def _download(tensor: torch.Tensor, moved: Moved) -> torch.Tensor:
    """The tensor on the host: an alias where the host can see it, else a copy of the bytes it spans."""
    device = device_at(tensor.device.index)
    if not tensor.data_ptr():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    nbytes = span_of(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
    moved.to_host += nbytes
    if device.memory.host_visible:
        return host_alias(tensor)
    copy = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    device.memory.copy_to_host(device.vendor_index, tensor.data_ptr(), copy.data_ptr(), nbytes)
    return restrided(copy.untyped_storage(), tensor, 0)


def _upload(host: torch.Tensor, target: torch.Tensor, moved: Moved) -> None:
    device = device_at(target.device.index)
    span = span_of(target.shape, target.stride())
    nbytes = span * target.dtype.itemsize
    moved.to_device += nbytes
    if device.memory.host_visible:
        host_alias(target).copy_(host)
        return
    if is_plain_copy(host, target):
        device.memory.copy_from_host(device.vendor_index, host.data_ptr(), target.data_ptr(), nbytes)
        return
    buffer = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    if span != target.numel():  # gaps: keep what lies between the elements
        device.memory.copy_to_host(device.vendor_index, target.data_ptr(), buffer.data_ptr(), nbytes)
        moved.to_host += nbytes
    restrided(buffer.untyped_storage(), target, 0).copy_(host)
    device.memory.copy_from_host(device.vendor_index, buffer.data_ptr(), target.data_ptr(), nbytes)


def copy_and_resize(source: torch.Tensor, target: torch.Tensor) -> None:
    """Give ``target`` the shape of ``source`` before a copy (``aten::_copy_from_and_resize``)."""
    if target.shape != source.shape:
        target.resize_(source.shape)
