"""Memory that is the host's own, from a caching pool."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
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


class _Running(threading.local):
    """Which device, by its vendor's index, this thread runs a kernel for."""

    device = 0


_running = _Running()


def for_device(device: int, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel`` as it is called for another device than a vendor's first, so that its results come from that device's pool."""

    @wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        before, _running.device = _running.device, device
        try:
            return kernel(*args, **kwargs)
        finally:
            _running.device = before

    return run


class HostMemory(Memory):
    """Memory that is the host's own. Kernels receive numpy arrays that alias the tensors, and return new ones.

    Each device has a pool of its own, as if its memory were its own.

    Args:
        limit: the most bytes the pool of a device may reserve; ``None`` for as many as the system gives.
        max_split: blocks above this size are kept whole for large requests; see ``CachingPool``.
    """

    host_visible = True

    pooled_from = 1 << 18
    """In bytes: blocks below are left to the host's own allocator, which is faster for them and keeps them itself."""

    def __init__(self, *, limit: int | None = None, max_split: int | None = None) -> None:
        self._limit, self._max_split = limit, max_split
        self._pools: dict[int, CachingPool] = {}
        self._small: dict[int, torch.Tensor] = {}

    def allocate(self, device: int, nbytes: int) -> int:
        """A block of the pool, or of the host's own allocator if it is small."""
        if nbytes >= self.pooled_from:
            return self.pool(device).allocate(nbytes)
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
            self._pools[device].free(address)
        else:
            del self._small[address]

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An uninitialised array for a kernel's result, in the memory of the device that the kernel runs for.

        Its block goes back when the last view or tensor over it dies.

        Raises:
            MemoryError: the device's pool is full.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.pooled_from:
            return np.empty(shape, dtype)
        pool = self.pool(_running.device)
        address = pool.allocate(nbytes)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, POOLED, address - BASE)
        reference = weakref.ref(array, _array_died)
        _leases[id(reference)] = (reference, pool, address)
        return array

    def empty_cache(self, device: int) -> None:
        """Give the pages of unused segments back to the system."""
        self.pool(device).trim()

    def pool(self, device: int) -> CachingPool:
        """The device's own."""
        pool = self._pools.get(device)
        if pool is None:
            made = CachingPool(_map_pages, _unmap_pages, limit=self._limit, max_split=self._max_split)
            pool = self._pools.setdefault(device, made)  # another thread may have been faster
        return pool

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
