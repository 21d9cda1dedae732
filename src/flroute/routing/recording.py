"""When each kernel ran: a record for every kernel, copy and host fallback, written only while somebody records.

Routes that are resolved while nobody records hold no trace of this; beginning and ending to record makes routers resolve theirs
anew.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from flroute.device import torch_fl
from flroute.device.memory import DeviceArray
from flroute.device.table import DEVICE_TYPE
from flroute.routing.host_times import HostTimes
from flroute.routing.tallies import Choice, Shapes, shapes_in

if TYPE_CHECKING:
    from flroute.routing.router import Router

now: Callable[[], int] = time.perf_counter_ns
_thread: Callable[[], int] = threading.get_native_id


class Record(NamedTuple):
    """One piece of work on a device.

    Attributes:
        choice: op, route and kernel.
        dtypes: of the call's tensors.
        shapes: of what the kernel was given.
        start: nanoseconds on the clock ``now``.
        end: likewise.
        thread: of the caller, as the operating system numbers it.
        stream: of the device, 0 for the default one.
        nbytes: bytes read and written: those of arguments and results; of a copy, those that moved.
        made: bytes of new results.
    """

    choice: Choice
    dtypes: tuple[str, ...]
    shapes: Shapes
    start: int
    end: int
    thread: int
    stream: int
    nbytes: int
    made: int

    @property
    def name(self) -> str:
        """The kernel's, or the op that the host computed: ``reference/numpy:mm``, ``host:aten::erfinv``."""
        return self.choice.kernel or f"host:{self.choice.op}"

    @property
    def device_index(self) -> int:
        """Of the device that worked, or whose memory was read or written."""
        return index_in(self.choice.device)

    @property
    def nanoseconds(self) -> int:
        """How long it took, what was called inside included."""
        return self.end - self.start


class Recording:
    """The records of the routers it watches.

    Args:
        host_times: where the host's time for the same calls is to be kept; they are measured if given.

    Attributes:
        records: in the order in which the work ended.
        epoch: nanoseconds since 1970 at which the clock ``now`` read 0.
    """

    def __init__(self, host_times: HostTimes | None = None) -> None:
        self.records: list[Record] = []
        self.host_times = host_times
        self.epoch = time.time_ns() - now()
        self._routers: list[Router] = []

    def watch(self, router: Router) -> None:
        """Record what this router runs, too."""
        if router in self._routers:
            return
        router.recordings = (*router.recordings, self)
        router.invalidate()
        self._routers.append(router)

    def close(self) -> None:
        """Record no further."""
        for router in self._routers:
            router.recordings = tuple(other for other in router.recordings if other is not self)
            router.invalidate()
        self._routers.clear()


Recordings = tuple[Recording, ...]

_open: list[Recording] = []


@contextmanager
def record(
    routers: Callable[[], Iterable[Router]], host_times: HostTimes | None = None
) -> Iterator[Recording]:
    """Record what runs while open.

    Args:
        routers: tells whose work is recorded, beside that of routers which ``watch`` is told of meanwhile.
        host_times: as for a recording.
    """
    made = Recording(host_times)
    _open.append(made)
    try:
        for router in routers():
            made.watch(router)
        yield made
    finally:
        _open.remove(made)
        made.close()


def watch(router: Router) -> None:
    """A session opens: whoever records sees it, too."""
    for recording in _open:
        recording.watch(router)


def index_in(device: str) -> int:
    """The index of the device that a decision is about; of a copy between two devices, the one that is written.

    Example:
        >>> index_in("fl:1"), index_in("fl:1->cpu"), index_in("fl:0->fl:1")
        (1, 1, 1)
    """
    return int(device.rpartition(f"{DEVICE_TYPE}:")[2].partition("->")[0])


def _stream_reader(device_index: int) -> Callable[[], int]:
    """Tells the stream that this thread's work on a device goes to; every device has at least the default one, 0."""
    current = getattr(torch_fl, "current_stream", None)
    return int if current is None else lambda: int(current(device_index).stream_id)


def recorded_kernel(
    function: Callable[..., Any], choice: Choice, dtypes: tuple[str, ...], recordings: Recordings
) -> Callable[..., Any]:
    """A kernel whose runs are recorded; one that raises leaves no record."""
    append_all = [recording.records.append for recording in recordings]
    stream = _stream_reader(index_in(choice.device))

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        start = now()
        result = function(*args, **kwargs)
        end = now()
        shapes: list[tuple[int, ...]] = []
        read = _measure((*args, *kwargs.values()) if kwargs else args, shapes)
        made = _measure((result,), [])
        record = Record(choice, dtypes, tuple(shapes), start, end, _thread(), stream(), read + made, made)
        for append in append_all:
            append(record)
        return result

    return run


def recorded_plan(
    plan: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    choice: Choice,
    dtypes: tuple[str, ...],
    recordings: Recordings,
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """The same for work that is no kernel's: takes and returns tensors."""
    if not recordings:
        return plan

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shapes, start = shapes_in(args, kwargs), now()
        result = plan(args, kwargs)
        end = now()
        read, made = _measure((*args, *kwargs.values()), []), _measure((result,), [])
        note(recordings, choice, dtypes, shapes, start, end, read + made, made)
        return result

    return run


def note(
    recordings: Recordings,
    choice: Choice,
    dtypes: tuple[str, ...],
    shapes: Shapes,
    start: int,
    end: int,
    nbytes: int,
    made: int = 0,
) -> None:
    """Record what has just ended."""
    stream = _stream_reader(index_in(choice.device))()
    record = Record(choice, dtypes, shapes, start, end, _thread(), stream, nbytes, made)
    for recording in recordings:
        recording.records.append(record)


class Span(NamedTuple):
    """A record among the others of its thread.

    Attributes:
        record: the record.
        own: nanoseconds that it spent in no other.
        depth: in how many others it ran.
    """

    record: Record
    own: int
    depth: int


def spans(records: Iterable[Record]) -> list[Span]:
    """Each record with its own time: a kernel may have the host compute a part, which has a record, too."""
    by_thread: dict[int, list[Record]] = {}
    for record in records:
        by_thread.setdefault(record.thread, []).append(record)
    found: list[Span] = []
    for those in by_thread.values():
        under_way: list[int] = []  # places in ``found``, outermost first
        for record in sorted(those, key=lambda r: (r.start, -r.end)):
            while under_way and found[under_way[-1]].record.end < record.end:
                under_way.pop()
            if under_way:
                outer = found[under_way[-1]]
                found[under_way[-1]] = outer._replace(own=outer.own - record.nanoseconds)
            found.append(Span(record, record.nanoseconds, len(under_way)))
            under_way.append(len(found) - 1)
    return found


def _measure(values: Iterable[Any], shapes: list[tuple[int, ...]]) -> int:
    """Bytes of all arrays or tensors, those in lists too; ``shapes`` takes up theirs."""
    total = 0
    for value in values:
        if isinstance(value, np.ndarray):  # nearly always
            total += value.nbytes
            shapes.append(value.shape)
        elif isinstance(value, list | tuple):
            total += _measure(value, shapes)
        elif isinstance(value, torch.Tensor | DeviceArray | np.generic):
            total += (
                0 if isinstance(value, torch.Tensor) and value.layout is not torch.strided else value.nbytes
            )
            shapes.append(tuple(value.shape))
    return total
