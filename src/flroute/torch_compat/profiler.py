"""PyTorch's profiler: it knows of a device's work only through C++, so what it recorded is joined by what we did.

Each profile is told to begin and end; its events, tables and Chrome traces then hold the device's rows like those of any other.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd import DeviceType, ProfilerState  # type: ignore[attr-defined]
from torch.autograd.profiler_util import FunctionEvent, FunctionEventAvg

MEMORY_HISTORY = ("_record_memory_history", "_dump_snapshot", "_snapshot")
"""Names of ``torch.cuda.memory`` that PyTorch's guide to its memory viewer tells people to call."""

_Profile = torch.autograd.profiler.profile
_WORK = "_flroute_work"
_OF_A_MODE = "PythonDispatchMode"
"""PyTorch's event around what a dispatch mode does for an op: the op's own event stands around it."""


class DeviceRow(NamedTuple):
    """One piece of work on a device.

    Attributes:
        name: the kernel's.
        device_index: where it ran.
        stream: likewise.
        thread: who called, as the operating system numbers it.
        start: nanoseconds since 1970.
        end: likewise.
        made: bytes of new results.
    """

    name: str
    device_index: int
    stream: int
    thread: int
    start: int
    end: int
    made: int


class DeviceWork(Protocol):
    """What was recorded while a profile ran."""

    def stop(self) -> None:
        """Record no further."""

    def rows(self) -> Sequence[DeviceRow]:
        """All work, each piece beside the others, not within."""

    def trace_events(self, base: int) -> list[dict[str, Any]]:
        """Events of a Chrome trace, whose microsecond 0 is ``base`` nanoseconds after 1970."""


def join_profiler(device: str, start: Callable[[_Profile], DeviceWork]) -> None:
    """Have ``start(profile)`` called as each profile begins; its work is stopped, and joins the results, as the profile ends.

    Results can be asked for, and sorted by, the device's name: ``self_fl_time_total`` is ``self_device_time_total``.
    """
    for kind in (FunctionEvent, FunctionEventAvg):
        for name in (
            "{}_time",
            "{}_time_total",
            "self_{}_time_total",
            "{}_memory_usage",
            "self_{}_memory_usage",
        ):
            setattr(kind, name.format(device), property(attrgetter(name.format("device"))))
    prepare: Callable[..., Any] = _Profile._prepare_trace
    begin: Callable[..., Any] = _Profile._start_trace
    end: Callable[..., Any] = _Profile.__exit__
    parse: Callable[..., Any] = _Profile._parse_kineto_results
    export: Callable[..., Any] = _Profile.export_chrome_trace

    @functools.wraps(prepare)
    def prepare_trace(self: Any) -> None:
        if sees_device(
            self
        ):  # without kineto PyTorch would ask hooks of the device's that only C++ can bring
            self.profiler_kind = ProfilerState.KINETO_PRIVATEUSE1
        prepare(self)

    @functools.wraps(begin)
    def start_trace(self: Any) -> None:
        begin(self)
        self.__dict__[_WORK] = start(self)

    @functools.wraps(end)
    def leave(self: Any, *error: Any) -> Any:
        work = self.__dict__.get(_WORK)
        if work is not None:
            work.stop()
        return end(self, *error)

    @functools.wraps(parse)
    def parse_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        events = parse(self, result, *args, **kwargs)
        work = self.__dict__.get(_WORK)
        return events if work is None else _joined(events, work.rows(), result.trace_start_ns(), self)

    @functools.wraps(export)
    def export_trace(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(self, path, *args, **kwargs)
        work = self.__dict__.get(_WORK)
        if work is not None:
            _extend_trace(Path(path), work)
        return result

    _Profile._prepare_trace = prepare_trace  # type: ignore[method-assign]
    _Profile._start_trace = start_trace  # type: ignore[method-assign]
    _Profile.__exit__ = leave  # type: ignore[method-assign]
    _Profile._parse_kineto_results = parse_results  # type: ignore[method-assign]
    _Profile.export_chrome_trace = export_trace  # type: ignore[method-assign]


def sees_device(profile: Any) -> bool:
    """Whether the profile was asked for work on the device: ``activities`` has ``ProfilerActivity.PrivateUse1``, as by default."""
    return bool(profile.use_device == torch._C._get_privateuse1_backend_name())


def _joined(events: list[Any], rows: Sequence[DeviceRow], zero: int, profile: Any) -> list[Any]:
    """The profile's events, and those of the device; each row is counted for the innermost event around it."""
    device = profile.use_device
    number = max((event.id for event in events), default=0)
    made = [
        FunctionEvent(
            id=number + at,
            name=row.name,
            thread=row.thread,
            start_us=(row.start - zero) / 1e3,
            end_us=(row.end - zero) / 1e3,
            device_type=DeviceType.PrivateUse1,
            device_index=row.device_index,
            device_resource_id=row.stream,
            use_device=device,
            input_shapes=[],
            stack=[],
        )
        for at, row in enumerate(rows, start=1)
    ]
    around = [e for e in events if e.device_type == DeviceType.CPU and not e.is_async]
    for thread in {row.thread for row in rows}:
        theirs = [event for event in around if event.device_resource_id == thread]
        those = [(event, row) for event, row in zip(made, rows, strict=True) if row.thread == thread]
        _attribute(theirs, those, with_memory=profile.profile_memory)
    return sorted([*events, *made], key=lambda e: (e.time_range.start, -e.time_range.end))


def _attribute(around: list[Any], made: list[tuple[Any, DeviceRow]], *, with_memory: bool) -> None:
    """Count the rows of one thread for the events around them, which are nested in each other."""
    waiting = sorted(around, key=lambda e: (e.time_range.start, -e.time_range.end), reverse=True)
    under_way: list[Any] = []
    for event, row in sorted(made, key=lambda pair: pair[1].start):
        start = event.time_range.start
        while waiting and waiting[-1].time_range.start <= start:
            under_way.append(waiting.pop())
        under_way = [outer for outer in under_way if outer.time_range.end >= start]
        ops = under_way[:]
        while ops and ops[-1].name == _OF_A_MODE:
            ops.pop()
        if ops:
            ops[-1].append_kernel(event.name, event.device_index, event.time_range.elapsed_us())
        if with_memory:
            for outer in ops:
                outer.device_memory_usage += row.made


def _extend_trace(path: Path, work: DeviceWork) -> None:
    pack, unpack = (gzip.compress, gzip.decompress) if path.suffix == ".gz" else (bytes, bytes)
    trace = json.loads(unpack(path.read_bytes()))
    trace["traceEvents"] += work.trace_events(int(trace.get("baseTimeNanoseconds", 0)))
    path.write_bytes(pack(json.dumps(trace).encode()))
