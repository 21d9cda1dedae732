"""The error for memory that is not there: how much was asked for, by what, where the memory is, and what to do."""

from __future__ import annotations

import torch

from flroute.device.pool import PoolFullError, PoolStats
from flroute.device.table import Device


def opening() -> str:
    """What the message begins with: nothing, unless a program looks for another device's words."""
    return ""


def out_of_memory(device: Device, asked: int, op: str, why: MemoryError) -> torch.OutOfMemoryError:
    """What to raise from ``why``.

    Args:
        device: whose memory it is.
        asked: bytes.
        op: what asked for them, ``aten::add.Tensor``.
        why: what the vendor's memory raised.
    """
    device.stats.refused += 1
    total = device.facts.total_memory
    message = (
        f"{opening()}{op} on {device.name} ({device.vendor_device}) is out of memory. It asked for {asked} bytes; "
        f"{device.stats.allocated} bytes allocated by live tensors are in use, of {total}."
    )
    advice = "Free tensors or use a smaller batch"
    pool = device.memory.pool(device.vendor_index)
    if pool is not None:
        message += _holds(why.stats if isinstance(why, PoolFullError) else pool.stats())
        if pool.limit is not None and pool.limit < total:
            advice += ", or raise the limit with torch.fl.set_per_process_memory_fraction()"
    return torch.OutOfMemoryError(f"{message} {advice}. The vendor said: {why}")


def _holds(stats: PoolStats) -> str:
    return (
        f" The vendor's pool has {stats.reserved} bytes reserved: {stats.used} are in blocks in use, {stats.free} are free, in "
        f"pieces of at most {stats.largest_free}; {stats.fragmented} of these are fragmented: in segments partly in use."
    )
