"""Chrome traces, which chrome://tracing and Perfetto show: a process for each device, a track for each of its streams.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flroute.device import table
from flroute.routing.recording import Record

_DEVICES = 1_000_000_000
"""Devices go by numbers that no process has: Linux gives them up to four million."""


class Range(NamedTuple):
    """A module under way.

    Attributes:
        name: its path.
        thread: as the operating system numbers it.
        start: nanoseconds on the recording's clock.
        end: likewise.
    """

    name: str
    thread: int
    start: int
    end: int


def device_events(records: Sequence[Record], zero: int) -> list[dict[str, Any]]:
    """The work of devices.

    Work of several threads on one stream may overlap, which no viewer shows on one track: each thread after the first has a
    track of its own.

    Args:
        records: the work.
        zero: what is microsecond 0, in nanoseconds on the clock of the records.
    """
    tracks: dict[tuple[int, int, int], int] = {}
    events = []
    for record in sorted(records, key=lambda r: r.start):
        device, stream = record.device_index, record.stream
        track = tracks.setdefault((device, stream, record.thread), len(tracks))
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": record.name,
                "pid": _DEVICES + device,
                "tid": track,
                "ts": (record.start - zero) / 1e3,
                "dur": record.nanoseconds / 1e3,
                "args": {
                    "op": record.choice.op,
                    "route": str(record.choice.route),
                    "reason": str(record.choice.reason),
                    "device": device,
                    "stream": stream,
                    "bytes": record.nbytes,
                    "dtypes": list(record.dtypes),
                    "shapes": [list(shape) for shape in record.shapes],
                },
            }
        )
    return [*_names_of(tracks), *events]


def _names_of(tracks: dict[tuple[int, int, int], int]) -> list[dict[str, Any]]:
    names = []
    for device in dict.fromkeys(device for device, _, _ in tracks):
        found = table.device_at(device)
        names.append(_name("process_name", _DEVICES + device, 0, f"{found.name} ({found.vendor_device})"))
    first: dict[tuple[int, int], int] = {}
    for (device, stream, thread), track in tracks.items():
        alone = first.setdefault((device, stream), thread) == thread
        name = f"stream {stream}" if alone else f"stream {stream}, thread {thread}"
        names.append(_name("thread_name", _DEVICES + device, track, name))
    return names


def module_events(ranges: Iterable[Range], zero: int) -> list[dict[str, Any]]:
    """Modules under way, by the threads that called them."""
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "cat": "module",
            "name": found.name,
            "pid": os.getpid(),
            "tid": found.thread,
            "ts": (found.start - zero) / 1e3,
            "dur": (found.end - found.start) / 1e3,
        }
        for found in ranges
    ]
    if not events:
        return []
    return [_name("process_name", os.getpid(), 0, "modules"), *events]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}
