"""What a vendor says about its memory, and the arrays its kernels receive.

A vendor implements ``Memory``; flroute turns its addresses into tensors (``device/tensors.py``).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch

from flroute.device.pool import CachingPool


@dataclass(frozen=True)
class DeviceFacts:
    """What is known about one device.

    Args:
        name: the product's name, as ``torch.fl.get_device_name()`` shows it.
        total_memory: in bytes.
        capability: (major, minor), in the vendor's own numbering.
        multi_processor_count: number of cores that run kernels.
        bfloat16: whether kernels compute in bfloat16.
    """

    name: str
    total_memory: int
    capability: tuple[int, int] = (1, 0)
    multi_processor_count: int = 1
    bfloat16: bool = True


class Memory(abc.ABC):
    """How a vendor's memory works: allocate, free and copy bytes.

    Addresses are plain integers, device addresses unless said otherwise; sizes are in bytes. ``device``
    is the vendor's own index, from 0. Every method may be called from any thread. A copy has completed,
    or is ordered before every later call on that device, when the method returns.
    """

    host_visible: bool = False
    """True if the host may read and write device addresses; kernels then receive numpy arrays."""

    @abc.abstractmethod
    def allocate(self, device: int, nbytes: int) -> int:
        """Return the address of ``nbytes`` bytes (at least 1), aligned to 64; raise MemoryError if full."""

    @abc.abstractmethod
    def free(self, device: int, address: int, nbytes: int) -> None:
        """Take back a block; called once, when its last tensor dies. Must not raise."""

    @abc.abstractmethod
    def copy_to_host(self, device: int, source: int, host_target: int, nbytes: int) -> None:
        """Copy device bytes to a host address."""

    @abc.abstractmethod
    def copy_from_host(self, device: int, host_source: int, target: int, nbytes: int) -> None:
        """Copy host bytes to a device address."""

    @abc.abstractmethod
    def copy_on_device(
        self, source_device: int, source: int, target_device: int, target: int, nbytes: int
    ) -> None:
        """Copy between two devices of this vendor, or within one."""

    def empty_cache(self, device: int) -> None:  # noqa: B027 -- optional
        """Give back what is kept for later and used by no tensor; there is nothing if blocks are not kept."""

    def pool(self, device: int) -> CachingPool | None:
        """The pool that the device's blocks come from, if they do: for statistics and limits."""
        return None


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """What a kernel receives for a tensor whose memory the host cannot read.

    Attributes:
        address: device address of the first element.
        shape: sizes, in elements.
        strides: in elements, one per dimension.
        dtype: the PyTorch dtype.
        device: the vendor's own device index.
        owner: keeps the block alive; only flroute sets it.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: int
    owner: Any = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, had they no gaps."""
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True
