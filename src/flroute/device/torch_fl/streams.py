"""Streams and events of ``torch.fl``: PyTorch's own types, with the vendor's streams behind them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from flroute.device import table
from flroute.device.table import DEVICE_TYPE, Device, DeviceLike
from flroute.device.torch_fl.absent import absent_from
from flroute.errors import StreamError
from flroute.torch_compat import PRIVATEUSE1, PlainEvent, PlainStream

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
    "synchronize",
]


class Stream(PlainStream):
    """A queue of work on a device: what is given to one stream runs in order, and beside what others do.

    With ``with stream:`` the stream and its device are this thread's current ones.

    Args:
        device: where; ``None`` for the current device.
        priority: lower numbers are more urgent, where the vendor knows priorities.

    Raises:
        DeviceError: no such device.

    Example:
        >>> import flroute, torch
        >>> side = torch.fl.Stream()
        >>> with torch.fl.stream(side):
        ...     y = torch.ones(2, device="fl") + 1
        >>> torch.fl.current_stream().wait_stream(side)
    """

    def __new__(
        cls,
        device: DeviceLike = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,  # noqa: ARG004 -- cuda's signature
    ) -> Self:
        """A new stream, or the one with this ``stream_id``."""
        found = table.device_at(table.to_index(device if device_index is None else device_index))
        if stream_id is None:
            stream_id = found.streams.create(found.vendor_index, priority)
        return super().__new__(cls, stream_id=stream_id, device_index=found.index, device_type=PRIVATEUSE1)

    @property
    def _on(self) -> Device:
        return table.device_at(self.device_index)

    def record_event(self, event: torch.Event | None = None) -> Event:
        """Record ``event``, or a new one, after what was given to this stream so far; returns it."""
        recorded = Event() if event is None else _ours(event)
        recorded.record(self)
        return recorded

    def wait_event(self, event: torch.Event) -> None:
        """Have what is given to this stream from now on wait for ``event``."""
        _ours(event).wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Have what is given to this stream from now on wait for what was given to ``stream`` so far."""
        self.wait_event(_checked(stream).record_event())

    def query(self) -> bool:
        """Whether all work of this stream is done."""
        return self._on.streams.is_idle(self._on.vendor_index, self.stream_id)

    def synchronize(self) -> None:
        """Wait until all work of this stream is done."""
        self.record_event().synchronize()

    def __enter__(self) -> Self:
        context = StreamContext(self)
        context.__enter__()
        _entered.contexts.append(context)
        return self

    def __exit__(self, *exc_info: object) -> None:
        contexts = _entered.contexts
        at = max(i for i, context in enumerate(contexts) if context.stream is self)
        contexts.pop(at).__exit__(*exc_info)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.contexts: list[StreamContext] = []


_entered = _Entered()


class Event(PlainEvent):
    """A point in the work of a stream, to wait for or to measure from.

    Args:
        enable_timing: whether ``elapsed_time`` may be asked.
        blocking: taken for cuda's sake; how the host waits is the vendor's business.
        interprocess: refused: device memory and events belong to one process.
        device: whose streams it is recorded on; without an index that of the first it is recorded on.

    Example:
        >>> import flroute, torch
        >>> start, end = torch.fl.Event(enable_timing=True), torch.fl.Event(enable_timing=True)
        >>> start.record()
        >>> y = torch.ones(2, device="fl") + 1
        >>> end.record()
        >>> end.synchronize()
        >>> start.elapsed_time(end) > 0
        True
    """

    _index: int | None
    _timed: bool
    _moment: tuple[Device, Any] | None

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        *,
        device: DeviceLike = None,
    ) -> Self:
        """An event that was not recorded yet."""
        if interprocess:
            raise StreamError(
                f"an event of {DEVICE_TYPE!r} cannot be shared with another process: leave out interprocess=True, and "
                "synchronize before you tell the other process"
            )
        bare = device is None or (
            not isinstance(device, int) and torch.device(device) == torch.device(DEVICE_TYPE)
        )
        index = None if bare else table.to_index(device)
        made = super().__new__(
            cls, torch.device(DEVICE_TYPE, index or 0), enable_timing=enable_timing, blocking=blocking
        )
        made._index, made._timed, made._moment = index, enable_timing, None
        return made

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """Where it is recorded; ``None`` before that is known."""
        return None if self._index is None else torch.device(DEVICE_TYPE, self._index)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the point after what was given to ``stream``, or to the current one, so far.

        Raises:
            StreamError: the stream is of another device than the event.
        """
        if stream is None:
            stream = current_stream(self._index)
        on = _checked(stream)._on
        if self._index is not None and self._index != on.index:
            raise StreamError(
                f"an event of {DEVICE_TYPE}:{self._index} cannot be recorded on a stream of {on.name}: "
                f"make one for each device, torch.fl.Event(device={on.name!r})"
            )
        self._moment = on, on.streams.record(on.vendor_index, stream.stream_id)
        self._index = on.index

    def query(self) -> bool:
        """Whether all work before it is done; true of an event that was never recorded, as on cuda."""
        if self._moment is None:
            return True
        on, moment = self._moment
        return on.streams.is_over(on.vendor_index, moment)

    def synchronize(self) -> None:
        """Wait until all work before it is done."""
        if self._moment is not None:
            on, moment = self._moment
            on.streams.wait(on.vendor_index, moment)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Have what is given to ``stream``, or to the current one, from now on wait for this event."""
        waits = _checked(current_stream() if stream is None else stream)
        if self._moment is None:
            return
        on, moment = self._moment
        if waits._on.streams is on.streams:
            on.streams.wait_on_stream(waits._on.vendor_index, waits.stream_id, moment)
        else:  # another vendor's stream knows nothing of ours: the host waits
            on.streams.wait(on.vendor_index, moment)

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``.

        Raises:
            StreamError: one was made without timing, never recorded, is not over yet, or is of another device.
        """
        end = _ours(end_event)
        if not (self._timed and end._timed):
            raise StreamError(
                "both events must be made with enable_timing=True to measure the time between them"
            )
        if self._moment is None or end._moment is None:
            which = "the first" if self._moment is None else "the second"
            raise StreamError(
                f"{which} event was never recorded: call .record() on both before elapsed_time()"
            )
        on, start = self._moment
        if end._moment[0] is not on:
            raise StreamError(
                f"the events are of {on.name} and {end._moment[0].name}, whose clocks differ: record both on one device"
            )
        if not (self.query() and end.query()):
            raise StreamError(
                "the work before an event is not done yet: call .synchronize() on it before elapsed_time()"
            )
        return on.streams.milliseconds(on.vendor_index, start, end._moment[1])

    def ipc_handle(self) -> bytes:
        """Refused: events belong to one process."""
        raise StreamError(
            f"an event of {DEVICE_TYPE!r} has no handle for other processes: synchronize before you tell them"
        )

    def __repr__(self) -> str:
        return f"<torch.fl.Event on {self.device or 'no device yet'}>"


class StreamContext:
    """Context in which a stream, and its device, are this thread's current ones; ``None`` changes nothing.

    Raises:
        StreamError: the stream is of another type of device.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = None if stream is None else _checked(stream)
        self._before: list[tuple[list[int], int]] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            on = self.stream._on
            before = on.streams.current(on.vendor_index)
            self._before.append((table.push_current(on.index), before))
            on.streams.set_current(on.vendor_index, self.stream.stream_id)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            on = self.stream._on
            claim, before = self._before.pop()
            on.streams.set_current(on.vendor_index, before)
            table.pop_current(claim)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context in which ``stream`` is this thread's current one."""
    return StreamContext(stream)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that this thread's work on a device goes to."""
    on = table.device_at(table.to_index(device))
    return Stream(stream_id=on.streams.current(on.vendor_index), device_index=on.index)


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that work on a device goes to unless another is asked for."""
    return Stream(stream_id=0, device_index=table.to_index(device))


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` and its device this thread's current ones; prefer ``with torch.fl.stream(...)``."""
    if stream is not None:
        chosen = _checked(stream)
        on = chosen._on
        table.set_current_index(on.index)
        on.streams.set_current(on.vendor_index, chosen.stream_id)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on a device."""
    on = table.device_at(table.to_index(device))
    on.streams.synchronize(on.vendor_index)


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured: never, there are none."""
    return False


def _checked(stream: torch.Stream) -> Stream:
    """``stream`` as one of ours."""
    if isinstance(stream, Stream):
        return stream
    kind = stream.device.type if isinstance(stream, PlainStream) else None
    if kind != DEVICE_TYPE:
        raise StreamError(
            f"expected a stream of a device of type {DEVICE_TYPE!r}, got {stream!r}; make one with torch.fl.Stream()"
        )
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index)


def _ours(event: torch.Event) -> Event:
    if isinstance(event, Event):
        return event
    raise StreamError(
        f"expected an event of a device of type {DEVICE_TYPE!r}, got {event!r}; make one with torch.fl.Event()"
    )


__getattr__ = absent_from("streams")
