"""``torch.fl``: the device's module, with the names ``torch.cuda`` has.

One file for each topic; ``absent`` says of every other name of ``torch.cuda`` why it is not here, and ``accelerator`` has
``torch.accelerator`` answer alike.

Example:
    >>> import flroute, torch
    >>> torch.fl.is_available()
    True
"""

from __future__ import annotations

from typing import Any

import torch

from flroute.device.torch_fl import amp, devices, memory, random, streams
from flroute.device.torch_fl.absent import why_absent
from flroute.device.torch_fl.devices import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    has_half,
    has_magma,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    set_device,
)
from flroute.device.torch_fl.memory import (
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from flroute.device.torch_fl.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from flroute.device.torch_fl.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
    synchronize,
)

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "has_half",
    "has_magma",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
]

SUBMODULES = {"amp": amp, "devices": devices, "memory": memory, "random": random, "streams": streams}
"""What ``import torch.fl.memory`` and the like find."""

_initialized = True  # what torch.utils.checkpoint asks before it saves a device's random state


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes ``torch.autocast("fl")`` accepts."""
    return [torch.float16, torch.bfloat16]


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> Any:
    reason = why_absent(name)
    if reason is not None:
        raise AttributeError(f"torch.fl has no {name!r}: {reason}")
    raise AttributeError(f"torch.fl has no {name!r} in this version of flroute; it has: {', '.join(__all__)}")
