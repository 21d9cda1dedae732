"""``torch.fl``: the device's module, with the names ``torch.cuda`` has.

Example:
    >>> import flroute, torch
    >>> torch.fl.is_available()
    True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flroute.device import table
from flroute.device.rng import get_rng_state, manual_seed, manual_seed_all, set_rng_state
from flroute.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from flroute.errors import DeviceError

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "init",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]

_initialized = True  # what torch.utils.checkpoint asks before it saves a device's random state

DeviceLike = torch.device | int | str | None


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def init() -> None:
    """Load the vendors now rather than at first use."""
    table.devices()


def is_initialized() -> bool:
    """Whether the device can be used; it needs no initialisation."""
    return True


def device_count() -> int:
    """How many devices there are, of all vendors."""
    return table.device_count()


def current_device() -> int:
    """Index of this thread's current device."""
    return table.current_index()


def set_device(device: DeviceLike) -> None:
    """Make ``device`` this thread's current device; prefer ``with torch.fl.device(...)``."""
    table.set_current_index(table.to_index(device))


class device:  # noqa: N801 -- torch.cuda.device's name
    """Context in which ``device`` is the current one; ``None`` or a negative index changes nothing.

    Example:
        >>> import flroute, torch
        >>> with torch.fl.device(1):
        ...     torch.fl.current_device()
        1
    """

    def __init__(self, device: DeviceLike) -> None:
        absent = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if absent else table.to_index(device)
        self._claims: list[list[int]] = []

    def __enter__(self) -> None:
        self._claims.append(table.push_current(self.idx if self.idx >= 0 else table.current_index()))

    def __exit__(self, *_: object) -> None:
        table.pop_current(self._claims.pop())


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on a device. Kernels are synchronous here, so this only checks the argument."""
    table.to_index(device)


@dataclass(frozen=True)
class DeviceProperties:
    """What is known about a device."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    vendor: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, memory in bytes, capability, number of cores and vendor."""
    found = table.device_at(table.to_index(device))
    facts = found.facts
    return DeviceProperties(
        facts.name, facts.total_memory, *facts.capability, facts.multi_processor_count, found.vendor
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The product's name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(major, minor), in the vendor's own numbering."""
    return table.device_at(table.to_index(device)).facts.capability


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors, the results of host fallbacks among them."""
    return table.device_at(table.to_index(device)).stats.allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that were alive at once since the start or ``reset_peak_memory_stats``."""
    return table.device_at(table.to_index(device)).stats.peak


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let the peak start again from what is alive now."""
    stats = table.device_at(table.to_index(device)).stats
    stats.peak = stats.allocated


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of live tensors, and of what the device's memory keeps for later ones."""
    found = table.device_at(table.to_index(device))
    pool = found.memory.pool(found.vendor_index)
    return found.stats.allocated + (0 if pool is None else pool.cached())


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Numbers about a device's memory, in bytes under cuda's names; of a pool also how it is divided up."""
    found = table.device_at(table.to_index(device))
    pool = found.memory.pool(found.vendor_index)
    numbers = {
        "allocated_bytes.all.current": found.stats.allocated,
        "allocated_bytes.all.peak": found.stats.peak,
        "reserved_bytes.all.current": memory_reserved(device),
    }
    if pool is not None:
        held = pool.stats()
        numbers |= {
            "active_bytes.all.current": held.used,
            "inactive_split_bytes.all.current": held.fragmented,
            "segment.all.current": held.segments,
        }
    return numbers


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Let the device's pool reserve no more than this part of its memory; beyond that is ``torch.OutOfMemoryError``.

    Small blocks that do not come from the pool are not counted. Each device has a limit of its own.
    """
    found = table.device_at(table.to_index(device))
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of a device's memory must be between 0 and 1, not {fraction}")
    pool = found.memory.pool(found.vendor_index)
    if pool is None:
        raise DeviceError(
            f"{found.name} ({found.vendor_device}) has no memory pool to limit: its vendor hands out every block itself"
        )
    pool.limit = int(fraction * found.facts.total_memory)


def empty_cache() -> None:
    """Give back what is kept for later and used by no tensor, on every device."""
    for found in table.devices():
        found.memory.empty_cache(found.vendor_index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes ``torch.autocast("fl")`` accepts."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> Any:
    raise AttributeError(f"torch.fl has no {name!r} in this version of flroute; it has: {', '.join(__all__)}")
