"""Memory of the devices: how much is in use, kept and left."""

from __future__ import annotations

import math
from typing import Any

import torch

from flroute.device import table
from flroute.device.pool import CachingPool
from flroute.device.table import Device, DeviceLike
from flroute.device.torch_fl.absent import absent_from
from flroute.errors import DeviceError

__all__ = [
    "OutOfMemoryError",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


OutOfMemoryError = torch.OutOfMemoryError


def _find(device: DeviceLike) -> tuple[Device, CachingPool | None]:
    found = table.device_at(table.to_index(device))
    return found, found.memory.pool(found.vendor_index)


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors, the results of host fallbacks among them."""
    return _find(device)[0].stats.allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that were alive at once since the start or ``reset_peak_memory_stats``."""
    return _find(device)[0].stats.peak


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of live tensors, and of what the device's memory keeps for later ones."""
    found, pool = _find(device)
    return found.stats.allocated + (0 if pool is None else pool.cached())


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the device's pool had reserved at once, or that were alive, whichever is more."""
    found, pool = _find(device)
    return max(found.stats.peak, memory_reserved(device), 0 if pool is None else pool.stats().peak)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let the peaks start again from what is alive and reserved now."""
    found, pool = _find(device)
    found.stats.peak = found.stats.allocated
    if pool is not None:
        pool.reset_peak()


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Let what ``memory_stats`` counts since the start start again: requests, retries, refusals."""
    found, pool = _find(device)
    found.stats.refused = 0
    if pool is not None:
        pool.reset_counts()


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Numbers about a device's memory, under cuda's names where these mean something; in bytes unless they count.

    Of a pool also how it is divided up, and ``pool.requests`` with how many of them needed new memory, ``pool.new_segments``.

    Example:
        >>> import flroute, torch
        >>> x = torch.ones(100, device="fl")
        >>> torch.fl.memory_stats()["allocated_bytes.all.current"] >= 400
        True
    """
    found, pool = _find(device)
    numbers = {
        "allocated_bytes.all.current": found.stats.allocated,
        "allocated_bytes.all.peak": found.stats.peak,
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
        "active_bytes.all.current": found.stats.allocated,
        "active_bytes.all.peak": found.stats.peak,
        "num_alloc_retries": 0,
        "num_ooms": found.stats.refused,
    }
    if pool is not None:
        held = pool.stats()
        numbers |= {
            "active_bytes.all.current": held.used,
            "active_bytes.all.peak": max(held.used, found.stats.peak),
            "inactive_split_bytes.all.current": held.fragmented,
            "segment.all.current": held.segments,
            "segment.all.allocated": held.new_segments,
            "num_alloc_retries": held.retries,
            "max_split_size": -1 if pool.max_split is None else pool.max_split,
            "pool.requests": held.requests,
            "pool.new_segments": held.new_segments,
        }
    return numbers


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """``memory_stats`` with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, number in memory_stats(device).items():
        *parts, last = name.split(".")
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = number
    return nested


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of ``memory_stats`` to read; ``abbreviated`` leaves the pool out."""
    found, pool = _find(device)
    numbers = memory_stats(device)
    if abbreviated:
        numbers = {
            name: n for name, n in numbers.items() if name.startswith(("allocated", "reserved", "num_ooms"))
        }
    rows = [f"{name:<34} {number:>20,}" for name, number in numbers.items()]
    if pool is not None and not abbreviated:
        rows.append(f"{'reuse of the pool':<34} {pool.stats().reuse:>20.1%}")
    head = f"memory of {found.name} ({found.vendor_device}), {found.facts.total_memory:,} bytes in all"
    return "\n".join((head, "-" * 55, *rows))


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:  # noqa: ARG001 -- cuda's
    """Every segment of every device's pool and the blocks it is divided into, in cuda's form; there are no traces.

    Blocks that do not come from a pool are in no segment.
    """
    snapshot: list[dict[str, Any]] = []
    for found in table.devices():
        pool = found.memory.pool(found.vendor_index)
        for segment in () if pool is None else pool.segments():
            in_use = sum(size for _, size, used in segment.blocks if used)
            snapshot.append(
                {
                    "device": found.index,
                    "address": segment.address,
                    "total_size": segment.size,
                    "allocated_size": in_use,
                    "active_size": in_use,
                    "stream": 0,
                    "segment_type": "large",
                    "blocks": [
                        {
                            "address": address,
                            "size": size,
                            "state": "active_allocated" if used else "inactive",
                        }
                        for address, size, used in segment.blocks
                    ],
                }
            )
    return snapshot


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Bytes of a device's memory that this process has not reserved, and all of it."""
    total = _find(device)[0].facts.total_memory
    return max(total - memory_reserved(device), 0), total


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes that this process has reserved; what others use flroute is not told."""
    return memory_reserved(device)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Let the device's pool reserve no more than this part of its memory; beyond that is ``torch.OutOfMemoryError``.

    Small blocks that do not come from the pool are not counted. Each device has a limit of its own.
    """
    found, pool = _find(device)
    if isinstance(fraction, bool) or not isinstance(fraction, float | int):
        raise TypeError(
            f"the fraction of a device's memory must be a number between 0 and 1, not {fraction!r}"
        )
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction of a device's memory must be between 0 and 1, not {fraction}")
    if pool is None:
        raise DeviceError(
            f"{found.name} ({found.vendor_device}) has no memory pool to limit: its vendor hands out every block itself"
        )
    pool.limit = math.floor(fraction * found.facts.total_memory)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of a device's memory that its pool may reserve; 1 where nothing limits it."""
    found, pool = _find(device)
    return 1.0 if pool is None or pool.limit is None else min(pool.limit / found.facts.total_memory, 1.0)


def empty_cache() -> None:
    """Give back what is kept for later and used by no tensor, on every device."""
    for found in table.devices():
        found.memory.empty_cache(found.vendor_index)


def get_allocator_backend() -> str:
    """What hands out the current device's memory: ``pool``, or ``vendor`` where the vendor does it block by block."""
    return "vendor" if _find(None)[1] is None else "pool"


# cuda's older names
memory_cached = memory_reserved
max_memory_cached = max_memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

__getattr__ = absent_from("memory")
