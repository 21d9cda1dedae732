"""What ``torch.cuda`` would be if the host were a cuda device: for the judge of ``tests/scripts`` only.

Work is done when a call returns, so streams and events have nothing to wait for.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

FloatTensor, LongTensor = torch.FloatTensor, torch.LongTensor


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing to do."""


synchronize = set_device = empty_cache = reset_peak_memory_stats = manual_seed = manual_seed_all = _nothing


def is_available() -> bool:
    return True


is_bf16_supported = is_available


def device_count() -> int:
    return 1


def memory_allocated(*_: Any) -> int:
    return 0


max_memory_allocated = memory_reserved = memory_allocated


def get_device_name(*_: Any) -> str:
    return "host"


def get_device_properties(*_: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(name="host", total_memory=2**30, multi_processor_count=1)


def get_rng_state_all() -> list[torch.Tensor]:
    return [torch.get_rng_state()]


set_rng_state_all = _nothing


@contextmanager
def _in_place(*_: Any) -> Iterator[None]:
    yield


stream = device = _in_place


class Stream:
    """A queue that is always empty."""

    def __init__(self, **_: Any) -> None:
        """Priorities mean nothing here."""

    wait_stream = wait_event = synchronize = _nothing


current_stream = default_stream = Stream


class Event:
    """The time at which it was recorded."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1000

    def query(self) -> bool:
        return True

    synchronize = wait = _nothing


nvtx = types.SimpleNamespace(range_push=_nothing, range_pop=_nothing, range=nullcontext)


def _amp() -> types.ModuleType:
    """``torch.cuda.amp``: float16 unless said otherwise, as on cuda."""

    def autocast(enabled: bool = True, dtype: torch.dtype = torch.float16) -> torch.autocast:
        return torch.autocast("cpu", dtype=dtype, enabled=enabled)

    def for_the_host(decorator: Callable[..., Any]) -> Callable[..., Any]:
        return partial(decorator, device_type="cpu")

    amp = types.ModuleType("host_cuda.amp")
    amp.autocast = autocast  # type: ignore[attr-defined]
    amp.GradScaler = partial(torch.amp.GradScaler, "cpu")  # type: ignore[attr-defined]
    amp.custom_fwd = for_the_host(torch.amp.custom_fwd)  # type: ignore[attr-defined]
    amp.custom_bwd = for_the_host(torch.amp.custom_bwd)  # type: ignore[attr-defined]
    return amp


amp = sys.modules["host_cuda.amp"] = _amp()
