"""Giving a storage other memory, which PyTorch offers to its own backends only.

A storage (``StorageImpl``, c10/core/StorageImpl.h) describes its memory in five words: a ``DataPtr`` (the address, its owner and
how to free it, the device) and the size. Exchanging these words is what C++ does in ``std::swap`` of two storages.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from flroute.errors import DeviceError
from flroute.torch_compat import host_storage_at, storage_key

_STORAGE_WORDS = 8  # what is looked at of a StorageImpl: fewer than it has
_MEMORY_WORDS = 5  # a DataPtr (address, owner and how it is freed, device), then the size in bytes


def _words_of(storage: torch.UntypedStorage) -> Any:
    return (ctypes.c_uint64 * _STORAGE_WORDS).from_address(storage_key(storage))


def _swap_words(one: torch.UntypedStorage, other: torch.UntypedStorage, start: int) -> None:
    ours, theirs, part = _words_of(one), _words_of(other), slice(start, start + _MEMORY_WORDS)
    # one statement without a call or a jump: CPython interrupts it neither for a signal nor for another thread
    ours[part], theirs[part] = theirs[part], ours[part]


@functools.cache
def _memory_in_storage() -> int | None:
    """Where in a StorageImpl its memory is described, found by looking and proved by doing; ``None`` if it is not there."""
    buffer = ctypes.create_string_buffer(4567)
    address = ctypes.addressof(buffer)
    one, other = host_storage_at(address, 1237), host_storage_at(address + 64, 4321)
    last = _MEMORY_WORDS - 1
    found = [
        all(
            words[i] == storage.data_ptr() and words[i + last] == storage.nbytes()
            for storage, words in ((one, _words_of(one)), (other, _words_of(other)))
        )
        for i in range(_STORAGE_WORDS - last)
    ]
    if found.count(True) != 1:
        return None
    start = found.index(True)
    _swap_words(one, other, start)
    swapped = [one.data_ptr() - address, one.nbytes(), other.data_ptr() - address, other.nbytes()]
    _swap_words(one, other, start)
    return start if swapped == [64, 4321, 0, 1237] else None


def can_exchange_memory() -> bool:
    """Whether this PyTorch's storages are laid out as expected."""
    return _memory_in_storage() is not None


def exchange_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages of one device, as C++ does when it moves one to shared memory.

    Every tensor over ``one`` then sees what was ``other``'s memory, and the reverse; each block is freed with the storage
    that holds it last.

    Raises:
        DeviceError: ``can_exchange_memory`` says no.
    """
    start = _memory_in_storage()
    if start is None:
        raise DeviceError(
            "this PyTorch keeps the memory of a storage where it is not known to be; make a new storage instead"
        )
    _swap_words(one, other, start)
