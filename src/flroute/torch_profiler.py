"""What ``torch.profiler`` shows of the device: our own records, and the modules under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from flroute.chrome_trace import device_events
from flroute.routers import routers_in_use
from flroute.routing.module_ranges import module_ranges
from flroute.routing.recording import Recording, record, spans
from flroute.torch_compat import DeviceRow, sees_device


class Work:
    """Everything that ran on a device, in any thread, while a profile of PyTorch's ran.

    Args:
        profile: PyTorch's; with ``with_modules=True`` each call of a module is a range in it, too.
    """

    def __init__(self, profile: Any) -> None:
        self._recording: Recording | None = None
        with ExitStack() as stack:
            if sees_device(profile):
                self._recording = stack.enter_context(record(routers_in_use))
            if profile.with_modules:
                stack.enter_context(module_ranges(_range))
            self.stop = stack.pop_all().close

    def rows(self) -> list[DeviceRow]:
        """Kernels, copies and host fallbacks; what ran inside of one of them is part of it."""
        if self._recording is None:
            return []
        epoch = self._recording.epoch
        return [
            DeviceRow(r.name, r.device_index, r.stream, r.thread, epoch + r.start, epoch + r.end, r.made)
            for r, _, depth in spans(self._recording.records)
            if not depth
        ]

    def trace_events(self, base: int) -> list[dict[str, Any]]:
        """The same, and what ran inside, for a Chrome trace."""
        if self._recording is None:
            return []
        return device_events(self._recording.records, base - self._recording.epoch)


def _range(path: str) -> Callable[[], None]:
    made = torch.profiler.record_function(path)
    made.__enter__()
    return lambda: made.__exit__(None, None, None)
