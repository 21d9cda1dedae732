"""What a vendor says about its streams and events."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any


class _Current(threading.local):
    def __init__(self) -> None:
        self.stream: dict[int, int] = {}


class Streams:
    """How a vendor's streams and events work. As it stands, for kernels that have finished when they return.

    A stream is an integer, and 0 is each device's default one; ``device`` is the vendor's own index. A *moment* is whatever
    the vendor wants to remember about a point in the work of a stream: a driver's event, say. A vendor whose kernels go on
    after they return overrides all methods but ``current`` and ``set_current``, and has its kernels ask ``current`` where to put
    their work. Before the host touches memory that it sees, flroute waits for the device (``synchronize``); where it does not see
    it, the vendor's copies come after the work given to the device before. Every method may be called from any thread.

    Example:
        >>> streams = Streams()
        >>> start, end = streams.record(0, 0), streams.record(0, 0)
        >>> streams.is_over(0, end), streams.milliseconds(0, start, end) >= 0
        (True, True)
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._current = _Current()

    def create(self, device: int, priority: int) -> int:
        """A new stream of a device; lower numbers are more urgent."""
        return next(self._numbers)

    def current(self, device: int) -> int:
        """The stream that this thread's work on a device goes to."""
        return self._current.stream.get(device, 0)

    def set_current(self, device: int, stream: int) -> None:
        """Send this thread's later work on a device to ``stream``."""
        self._current.stream[device] = stream

    def record(self, device: int, stream: int) -> Any:
        """The moment at which everything given to ``stream`` so far is done."""
        return time.perf_counter_ns()

    def is_over(self, device: int, moment: Any) -> bool:
        """Whether a moment has passed."""
        return True

    def is_idle(self, device: int, stream: int) -> bool:
        """Whether everything given to ``stream`` so far is done."""
        return True

    def wait(self, device: int, moment: Any) -> None:
        """Return once a moment has passed."""

    def wait_on_stream(self, device: int, stream: int, moment: Any) -> None:
        """Have what is given to ``stream`` from now on wait for a moment of any of this vendor's streams."""

    def milliseconds(self, device: int, start: Any, end: Any) -> float:
        """The time from one moment to another, both over."""
        return float(end - start) / 1e6

    def synchronize(self, device: int) -> None:
        """Return once everything given to all streams of a device is done."""

    def use(self, device: int, stream: int, address: int, nbytes: int) -> None:
        """Work on ``stream`` uses a block: once its tensor dies it may be handed out again only after that work is done."""
