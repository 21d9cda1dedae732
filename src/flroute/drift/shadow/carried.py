"""The values of a reference, carried beside those of the device: one buffer on the host for each storage on the device.

A view of a device tensor is a view of its storage's buffer, with the same sizes, strides and offset: what is written through one is
seen through all, in both values. A storage without a buffer has the device's values for a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.drift.host_values import is_dense, seen_from_host
from flroute.torch_compat import HOST_KEYS, WeakStorage, storage_key

_SWEEP_EVERY = 256
"""Buffers that are begun until those of storages that are gone are let go of."""


@dataclass
class _Buffer:
    storage: WeakStorage
    address: int
    nbytes: int
    dtype: torch.dtype  # of the device's elements
    values: torch.Tensor  # one for each of them, in the same places of a storage of their own


class Carried:
    """The buffers of one reference.

    Args:
        dtype_for: the dtype in which it has the values of a device tensor.
    """

    def __init__(self, dtype_for: Callable[[torch.dtype], torch.dtype]) -> None:
        self._dtype_for = dtype_for
        self._buffers: dict[int, _Buffer] = {}
        self._begun = 0

    def clear(self) -> None:
        """From now on the device's values are the reference's."""
        self._buffers.clear()

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether there are values for this tensor that may differ from the device's."""
        return self._buffer_of(tensor) is not None

    def view(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The reference's values of a device tensor, writable; ``None`` where they are the device's."""
        buffer = self._buffer_of(tensor)
        if buffer is None:
            return None
        if buffer.dtype is tensor.dtype:
            made = buffer.values
        else:
            seen = _seen_as(_flat(buffer.values), buffer.dtype, tensor.dtype)
            if seen is None:  # its bytes are read as something else
                return None
            made = seen
        if made.stride() != tensor.stride() or made.shape != tensor.shape or tensor.storage_offset():
            made = made.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            made = torch.conj_physical(made)
        return torch.neg(made) if tensor.is_neg() else made

    def begin(self, tensor: torch.Tensor) -> None:
        """Give the tensor's storage a buffer that holds what the device holds, unless it has one."""
        if self.has(tensor) or not _can_be_carried(tensor) or tensor.is_conj() or tensor.is_neg():
            return
        whole = _whole_storage(tensor)
        values = seen_from_host(whole).to(self._dtype_for(tensor.dtype), copy=True)
        self._keep(tensor, values)

    def adopt(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """From now on ``values``, which the caller gives up, are the reference's for ``tensor``."""
        if not _can_be_carried(tensor):
            return
        values = values.to(self._dtype_for(tensor.dtype))
        if _fills(values, tensor):
            self._keep(tensor, values)
            return
        self.begin(tensor)
        known = self.view(tensor)
        if known is None or tensor.is_conj() or tensor.is_neg():  # lazily the conjugate of what is there
            self.drop(tensor)
        else:
            known.copy_(values)

    def drop(self, tensor: torch.Tensor) -> None:
        """The device's values are the reference's again, for all of the tensor's storage."""
        if self._buffers and is_dense(tensor):
            self._buffers.pop(storage_key(tensor.untyped_storage()), None)

    def _buffer_of(self, tensor: torch.Tensor) -> _Buffer | None:
        if not self._buffers or not is_dense(tensor):
            return None
        storage = tensor.untyped_storage()
        found = self._buffers.get(storage_key(storage))
        if found is None:
            return None
        if (found.address, found.nbytes) != (storage.data_ptr(), storage.nbytes()):  # given other memory
            del self._buffers[storage_key(storage)]
            return None
        return found

    def _keep(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        known = self._buffer_of(tensor)
        if known is not None:
            known.dtype, known.values = tensor.dtype, values
            return
        storage = tensor.untyped_storage()
        self._begun += 1
        if self._begun % _SWEEP_EVERY == 0:
            self._buffers = {key: kept for key, kept in self._buffers.items() if not kept.storage.expired()}
        self._buffers[storage_key(storage)] = _Buffer(
            WeakStorage(storage), storage.data_ptr(), storage.nbytes(), tensor.dtype, values
        )


def _can_be_carried(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE_TYPE and is_dense(tensor) and tensor.numel() > 0


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values.as_strided((values.numel(),), (1,), 0)


def _elements_of_storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes()) // tensor.dtype.itemsize


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    as_strided = torch.ops.aten.as_strided.default  # PyTorch's own: a session would count the view
    return as_strided.redispatch(HOST_KEYS, tensor, (_elements_of_storage(tensor),), (1,), 0)  # type: ignore[no-any-return]


def _fills(values: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether the values lie in memory of their own as the tensor's do, and these are all that its storage holds."""
    count = _elements_of_storage(tensor)
    return (
        values.stride() == tensor.stride()
        and values.numel() == count
        and not values.storage_offset()
        and not tensor.storage_offset()
        and values.untyped_storage().nbytes() == count * values.dtype.itemsize
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _seen_as(values: torch.Tensor, kept: torch.dtype, wanted: torch.dtype) -> torch.Tensor | None:
    """Flat values of one dtype as those of another: complex numbers are pairs of real ones."""
    if kept.is_complex and wanted is kept.to_real():
        return torch.view_as_real(values).reshape(-1)
    if wanted.is_complex and kept is wanted.to_real() and values.numel() % 2 == 0:
        return torch.view_as_complex(values.reshape(-1, 2))
    return None
