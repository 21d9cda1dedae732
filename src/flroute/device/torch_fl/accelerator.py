"""What ``torch.accelerator`` is answered: the same as ``torch.fl`` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flroute.device import rng, table
from flroute.device.dtypes import QUANTIZED
from flroute.device.torch_fl import devices, memory, streams


def _exchange(index: int) -> int:
    before = table.current_index()
    if index >= 0:
        table.set_current_index(index)
    return before


def _stats(index: int) -> dict[str, Any]:
    return memory.memory_stats_as_nested_dict(index)


def _capability(index: int) -> dict[str, Any]:
    table.device_at(index)
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": every - QUANTIZED}


def _nothing() -> None:
    """The host memory that a backend of PyTorch's own keeps pinned: here it is none."""


@dataclass(frozen=True)
class _DefaultGenerator:
    """What ``torch.accelerator.random`` reads of a generator; PyTorch makes a ``torch.Generator`` of its own devices only."""

    index: int

    def initial_seed(self) -> int:
        return rng.initial_seed_at(self.index)

    def get_state(self) -> torch.Tensor:
        return rng.get_rng_state(self.index)


def _default_generator(index: int) -> _DefaultGenerator:
    table.device_at(index)
    return _DefaultGenerator(index)


ANSWERS: Mapping[str, Callable[..., Any]] = {
    "emptyCache": memory.empty_cache,
    "emptyHostCache": _nothing,
    "exchangeDevice": _exchange,
    "getDefaultGenerator": _default_generator,
    "getDeviceCapability": _capability,
    "getDeviceIndex": table.current_index,
    "getDeviceStats": _stats,
    "getMemoryInfo": memory.mem_get_info,
    "getStream": streams.current_stream,
    "hooks_device_count": table.device_count,
    "hooks_exchange_device": _exchange,
    "hooks_get_current_device": table.current_index,
    "hooks_maybe_exchange_device": _exchange,
    "hooks_set_current_device": table.set_current_index,
    "isAllocatorInitialized": lambda: True,
    "maybeExchangeDevice": _exchange,
    "resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "resetPeakStats": memory.reset_peak_memory_stats,
    "setDeviceIndex": devices.set_device,
    "setStream": streams.set_stream,
    "synchronizeDevice": streams.synchronize,
}
"""By the name of the function in ``torch._C``, without its prefix."""
