"""Device memory that faults when the host touches it.

Device addresses lie in a range of address space without any access rights. The bytes live in a second mapping, the
*window*, at a fixed distance: only this package's copy calls and kernels know it, as only a chip's driver and its own
cores reach its memory.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flroute.vendor import DeviceArray, Memory

ALIGNMENT = 64
FLOAT32 = np.dtype(np.float32)


@dataclass
class Copies:
    """How often and how much was copied one way."""

    calls: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        """Count one copy."""
        self.calls += 1
        self.nbytes += nbytes


@dataclass
class Pool:
    """The memory of one device: first fit, neighbours merged.

    ``free`` holds (address, size) of the unused ranges in address order, ``used`` the size of each block.
    """

    free: list[tuple[int, int]]
    used: dict[int, int] = field(default_factory=dict)
    returned: deque[int] = field(default_factory=deque)

    def take(self, size: int) -> int:
        """The first range that is large enough."""
        self.collect()
        for place, (address, available) in enumerate(self.free):
            if available >= size:
                rest = [(address + size, available - size)] if available > size else []
                self.free[place : place + 1] = rest
                self.used[address] = size
                return address
        raise MemoryError(
            f"no {size} bytes in one piece; the largest is {max((n for _, n in self.free), default=0)}"
        )

    def collect(self) -> None:
        """Put returned blocks back among the unused ranges."""
        while self.returned:
            start = self.returned.popleft()
            end = start + self.used.pop(start)
            place = bisect.bisect(self.free, (start, 0))
            first = last = place
            if place < len(self.free) and self.free[place][0] == end:
                end, last = end + self.free[place][1], place + 1
            if place > 0 and sum(self.free[place - 1]) == start:
                start, first = self.free[place - 1][0], place - 1
            self.free[first:last] = [(start, end - start)]


class OpaqueMemory(Memory):
    """Memory of several devices that only copy calls and kernels can reach.

    Args:
        devices: how many devices.
        capacity: bytes of each; the operating system provides pages when they are first used.
    """

    host_visible = False

    def __init__(self, devices: int = 2, capacity: int = 2**30) -> None:
        self.devices, self.capacity = devices, capacity
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._device_range = mmap.mmap(-1, devices * capacity, private, prot=0)
        self._window = mmap.mmap(-1, devices * capacity, private)
        self._base = _address(self._device_range)
        self._distance = _address(self._window) - self._base
        self._pools = [Pool([(self._base + i * capacity, capacity)]) for i in range(devices)]
        self._lock = threading.Lock()
        self.to_host, self.from_host, self.on_device = Copies(), Copies(), Copies()

    def allocate(self, device: int, nbytes: int) -> int:
        """A block of at least ``nbytes`` bytes.

        Raises:
            MemoryError: no free range is large enough.
        """
        with self._lock:
            return self._pools[device].take(-(-nbytes // ALIGNMENT) * ALIGNMENT)

    def free(self, device: int, address: int, nbytes: int) -> None:
        """Take a block back.

        A tensor can die in a garbage collection that starts inside ``allocate``, where this thread holds the lock. So
        the block is only put on a list here (an atomic append), and the next ``allocate`` merges it.
        """
        self._pools[device].returned.append(address)

    def copy_to_host(self, device: int, source: int, host_target: int, nbytes: int) -> None:
        """Device to host."""
        ctypes.memmove(host_target, self._behind(source), nbytes)
        self._count(self.to_host, nbytes)

    def copy_from_host(self, device: int, host_source: int, target: int, nbytes: int) -> None:
        """Host to device."""
        ctypes.memmove(self._behind(target), host_source, nbytes)
        self._count(self.from_host, nbytes)

    def copy_on_device(
        self, source_device: int, source: int, target_device: int, target: int, nbytes: int
    ) -> None:
        """Device to device; the ranges may overlap."""
        ctypes.memmove(self._behind(target), self._behind(source), nbytes)
        self._count(self.on_device, nbytes)

    def used(self, device: int) -> int:
        """Bytes in blocks that are in use."""
        with self._lock:
            pool = self._pools[device]
            pool.collect()
            return sum(pool.used.values())

    def window(self, array: DeviceArray) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The elements of a float32 array, as only a kernel of this vendor may see them."""
        if array.numel == 0:
            return np.empty(array.shape, FLOAT32)
        strides = [stride * FLOAT32.itemsize for stride in array.strides]
        return np.ndarray(array.shape, FLOAT32, self._window, array.address - self._base, strides)

    def _behind(self, address: int) -> int:
        """Where the byte with this device address really is."""
        if not 0 <= address - self._base <= self.devices * self.capacity:
            raise ValueError(f"{address:#x} is not an address of this vendor's devices")
        return address + self._distance

    def _count(self, copies: Copies, nbytes: int) -> None:
        with self._lock:
            copies.add(nbytes)


def _address(mapping: mmap.mmap) -> int:
    """Where a mapping starts. Nothing is read, so the mapping needs no access rights."""
    return int(np.frombuffer(mapping, np.uint8).__array_interface__["data"][0])


MEMORY = OpaqueMemory()
