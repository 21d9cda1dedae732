"""Memory that is the host's own, from a caching pool."""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.device.address_space import BASE, POOLED
from flroute.device.memory import Memory
from flroute.device.pool import CachingPool

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)


def _map_pages(nbytes: int) -> int:
    """New pages. Not by ``mmap.mmap``, which unmaps when it dies: at exit that may be before the last tensor does."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address == _FAILED:
        raise MemoryError(f"the system has no {nbytes} bytes left")
    if _HUGE is not None:
        _libc.madvise(address, nbytes, _HUGE)
    return int(address)


def _unmap_pages(address: int, nbytes: int) -> None:
    _libc.munmap(address, nbytes)


_leases: dict[int, tuple[weakref.ref[Any], CachingPool, int]] = {}


def _array_died(reference: weakref.ref[Any], leases: Any = _leases) -> None:
    _, pool, address = leases.pop(id(reference))
    pool.free(address)


class HostMemory(Memory):
    """Memory that is the host's own. Kernels receive numpy arrays that alias the tensors, and return new ones.

    All devices of a vendor share one pool, as they share the host.

    Args:
        limit: the most bytes the pool may reserve; ``None`` for as many as the system gives.
        max_split: blocks above this size are kept whole for large requests; see ``CachingPool``.
    """

    host_visible = True

    pooled_from = 1 << 18
    """In bytes: blocks below are left to the host's own allocator, which is faster for them and keeps them itself."""

    def __init__(self, *, limit: int | None = None, max_split: int | None = None) -> None:
        self._pool = CachingPool(_map_pages, _unmap_pages, limit=limit, max_split=max_split)
        self._small: dict[int, torch.Tensor] = {}

    def allocate(self, device: int, nbytes: int) -> int:
        """A block of the pool, or of the host's own allocator if it is small."""
        if nbytes >= self.pooled_from:
            return self._pool.allocate(nbytes)
        try:
            block = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        except RuntimeError as error:  # PyTorch's host allocator raises no other
            raise MemoryError(str(error)) from error
        address = block.data_ptr()
        self._small[address] = block
        return address

    def free(self, device: int, address: int, nbytes: int) -> None:
        """Drop the block."""
        if nbytes >= self.pooled_from:
            self._pool.free(address)
        else:
            del self._small[address]

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised array for a kernel's result. Its block goes back when the last view or tensor over it dies.

        Raises:
            MemoryError: the pool is full.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.pooled_from:
            return np.empty(shape, dtype)
        pool = self._pool
        address = pool.allocate(nbytes)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, POOLED, address - BASE)
        reference = weakref.ref(array, _array_died)
        _leases[id(reference)] = (reference, pool, address)
        return array

    def empty_cache(self, device: int) -> None:
        """Give the pages of unused segments back to the system."""
        self._pool.trim()

    def pool(self, device: int) -> CachingPool:
        """The one pool of all devices."""
        return self._pool

    def copy_to_host(self, device: int, source: int, host_target: int, nbytes: int) -> None:
        """A memmove."""
        ctypes.memmove(host_target, source, nbytes)

    def copy_from_host(self, device: int, host_source: int, target: int, nbytes: int) -> None:
        """A memmove."""
        ctypes.memmove(target, host_source, nbytes)

    def copy_on_device(
        self, source_device: int, source: int, target_device: int, target: int, nbytes: int
    ) -> None:
        """A memmove."""
        ctypes.memmove(target, source, nbytes)
