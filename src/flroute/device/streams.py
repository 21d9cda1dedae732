"""Streams and events on ``fl``, with the methods of ``torch.cuda``'s.

Kernels and copies have completed when they return, so every stream is always up to date: waiting has nothing to wait for. What
is kept is what programs look at: which stream is current, and when an event was recorded.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

from flroute.device import table
from flroute.errors import DeviceError
from flroute.torch_compat import PRIVATEUSE1

DeviceLike = torch.device | int | str | None

_ids = itertools.count(1)  # 0 is the default stream of each device


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current: dict[int, Stream] = {}


_thread = _Thread()


class Stream(torch.Stream):
    """A stream of one device.

    Args:
        device: whose; the current device's by default.
        priority: taken, and of no effect.

    Example:
        >>> import flroute, torch
        >>> with torch.fl.stream(torch.fl.Stream()) as side:
        ...     torch.fl.current_stream() == side
        True
    """

    def __new__(  # noqa: D102, PYI034 -- the class says it; typing.Self needs Python 3.11
        cls,
        device: DeviceLike = None,
        priority: int = 0,  # noqa: ARG004 -- cuda's signature
        *,
        stream_id: int | None = None,
    ) -> Stream:
        index = table.to_index(device)
        number = next(_ids) if stream_id is None else stream_id
        return super().__new__(cls, stream_id=number, device_index=index, device_type=PRIVATEUSE1)

    def query(self) -> bool:
        """Whether all its work is done: always."""
        return True

    def synchronize(self) -> None:
        """Wait for its work, which is done."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Begin what comes next after ``stream``'s work, which is done."""

    def wait_event(self, event: torch.Event) -> None:
        """Begin what comes next after what ``event`` recorded, which is done."""

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Record an event on the stream; a new one if there is none."""
        event = event or Event()
        event.record(self)
        return event


class Event(torch.Event):
    """A moment on a stream.

    Args:
        device: whose; the current device's by default.
        enable_timing: whether ``elapsed_time`` may be asked.
        blocking: taken, and of no effect.
        interprocess: must be false: an event stays in its process.

    Example:
        >>> import flroute, torch
        >>> start, end = (torch.fl.Event(enable_timing=True) for _ in range(2))
        >>> start.record(); end.record()
        >>> start.elapsed_time(end) >= 0
        True
    """

    _recorded: float | None
    _timed: bool

    def __new__(  # noqa: D102, PYI034 -- likewise
        cls,
        device: DeviceLike = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,  # noqa: ARG004 -- cuda's signature
        interprocess: bool = False,
    ) -> Event:
        if interprocess:
            raise DeviceError("an fl event belongs to its process: leave out interprocess=True")
        index = table.to_index(device)
        made = super().__new__(cls, torch.device(table.DEVICE_TYPE, index), enable_timing=enable_timing)
        made._recorded, made._timed = None, enable_timing
        return made

    def record(self, stream: torch.Stream | None = None) -> None:
        """Note the time."""
        self._recorded = time.perf_counter()

    def query(self) -> bool:
        """Whether all that it recorded is done: always."""
        return True

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream wait for it; there is nothing to wait for."""

    def synchronize(self) -> None:
        """Wait for it; there is nothing to wait for."""

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``.

        Raises:
            DeviceError: one was made without ``enable_timing=True``, was not recorded, or is of another kind.
        """
        if not isinstance(end_event, Event):
            raise DeviceError(f"elapsed_time needs another fl event, not {type(end_event).__name__}")
        if not (self._timed and end_event._timed):
            raise DeviceError(
                "both events must be made with enable_timing=True: torch.fl.Event(enable_timing=True)"
            )
        if self._recorded is None or end_event._recorded is None:
            raise DeviceError(
                "both events must be recorded before the time between them is asked: event.record()"
            )
        return (end_event._recorded - self._recorded) * 1e3


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream of a device that is current unless another one is made so."""
    return Stream(device, stream_id=0)


def current_stream(device: DeviceLike = None) -> Stream:
    """This thread's current stream of a device."""
    found = _thread.current.get(table.to_index(device))
    return default_stream(device) if found is None else found


def set_stream(stream: Stream) -> None:
    """Make a stream this thread's current one on its device; prefer ``with torch.fl.stream(...)``."""
    _thread.current[stream.device_index] = stream


class stream:  # noqa: N801 -- torch.cuda.stream's name
    """A context in which a stream, and its device, are current; ``None`` changes nothing.

    Args:
        stream: of ``torch.fl.Stream``.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._left: list[tuple[Stream, list[int]]] = []

    def __enter__(self) -> Stream | None:
        if self.stream is not None:
            before = current_stream(self.stream.device)
            self._left.append((before, table.push_current(self.stream.device_index)))
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            before, claim = self._left.pop()
            set_stream(before)
            table.pop_current(claim)


StreamContext: Any = stream
