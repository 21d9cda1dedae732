"""What a session's work costs, op by op: the time that kernels, copies and host fallbacks took."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flroute.chrome_trace import Range, device_events, module_events
from flroute.report import counted
from flroute.routing.host_times import HostTimes
from flroute.routing.recording import Record, Recording, now, spans
from flroute.tables import Grid, TableAndText, shown_seconds
from flroute.vocabulary import Route

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ProfileRow:
    """What the calls of one op with one route and kernel add up to.

    Attributes:
        op: the overload, such as ``aten::add.Tensor``.
        route: ``native``, ``fallback`` or ``copy``; splitting an op and making a view are no work on a device.
        kernel: who did it; ``None`` for the host.
        device: as in a decision.
        calls: how often.
        seconds: all of them, without what ran inside of them and has a row of its own.
        nbytes: read and written; of copies, moved.
        times_host: how many times the host's time they took, the fastest call of each signature compared; ``None`` where the
            host was not asked, or cannot say.
        is_slow: whether that is more than was said to be acceptable.
    """

    op: str
    route: Route
    kernel: str | None
    device: str
    calls: int
    seconds: float
    nbytes: int
    times_host: float | None
    is_slow: bool


class Profile(TableAndText):
    """What ``session.profile()`` gives: prints as a table, renders in a notebook, and is written as JSON or as a Chrome trace.

    It fills while its block runs.

    Args:
        host_times: where the host's times are, if they were asked for.
        slower_than: as many times the host's time is acceptable.
    """

    def __init__(self, host_times: HostTimes | None, slower_than: float) -> None:
        self._host_times, self.slower_than = host_times, slower_than
        self._recording: Recording | None = None
        self._ranges: list[Range] = []

    @property
    def records(self) -> list[Record]:
        """Each kernel run, copy and host fallback, in the order in which they ended."""
        return [] if self._recording is None else list(self._recording.records)

    @property
    def seconds(self) -> float:
        """All of them added up."""
        return sum(own for _, own, _ in spans(self.records)) / 1e9

    def rows(self) -> list[ProfileRow]:
        """The lines of the table, those that took longest first."""
        groups: dict[tuple[Any, ...], list[tuple[Record, int]]] = {}
        for record, own, _ in spans(self.records):
            choice = record.choice
            groups.setdefault((choice.op, choice.route, choice.kernel, choice.device), []).append(
                (record, own)
            )
        rows = [self._row(group) for group in groups.values()]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def slow(self) -> list[ProfileRow]:
        """Lines whose time is far above the host's; empty unless the host was asked."""
        return [row for row in self.rows() if row.is_slow]

    def _row(self, group: list[tuple[Record, int]]) -> ProfileRow:
        op, route, kernel, device, *_ = group[0][0].choice
        times = self._times_host(record for record, _ in group)
        return ProfileRow(
            op, route, kernel, device, len(group), sum(own for _, own in group) / 1e9,
            sum(record.nbytes for record, _ in group), times, times is not None and times > self.slower_than,
        )  # fmt: skip

    def _times_host(self, records: Iterable[Record]) -> float | None:
        if self._host_times is None:
            return None
        calls: dict[tuple[Any, ...], list[int]] = {}
        for record in records:
            calls.setdefault((record.choice.op, record.dtypes, record.shapes), []).append(record.nanoseconds)
        ours = theirs = 0.0
        for signature, taken in calls.items():
            host = self._host_times.of(*signature)
            if host:
                ours += min(taken) / 1e9 * len(taken)
                theirs += host * len(taken)
        return ours / theirs if theirs else None

    # -- as data

    def to_dict(self) -> dict[str, Any]:
        """The lines as plain data; times in seconds."""
        return {
            "schema_version": SCHEMA_VERSION,
            "seconds": self.seconds,
            "slower_than": self.slower_than,
            "rows": [{**asdict(row), "route": str(row.route)} for row in self.rows()],
        }

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write ``to_dict()`` to ``path`` and return it; missing directories are made."""
        return _written(path, self.to_dict())

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write a file that chrome://tracing and https://ui.perfetto.dev show, and return its path.

        Each device is a process there, each of its streams a track; modules, where they were recorded, are on the tracks of
        their threads.
        """
        records = self.records
        zero = min([*(r.start for r in records), *(r.start for r in self._ranges)], default=0)
        events = [*device_events(records, zero), *module_events(self._ranges, zero)]
        return _written(path, {"displayTimeUnit": "ms", "traceEvents": events})

    # -- for readers

    def summary(self) -> list[str]:
        """The profile in a few lines of text."""
        rows, slow = self.rows(), self.slow
        lines = [f"{counted(sum(row.calls for row in rows), 'call')} took {shown_seconds(self.seconds)}"]
        if self._host_times is not None:
            limit = f"more than {self.slower_than:g} times the host's time"
            lines.append(f"{limit}: " + (", ".join(dict.fromkeys(row.op for row in slow)) or "none"))
        return lines

    def _grid(self) -> Grid:
        rows, total = self.rows(), self.seconds or 1.0
        columns: tuple[str, ...] = (
            "op",
            "route",
            "kernel",
            "device",
            "calls",
            "time",
            "share",
            "a call",
            "bytes",
        )
        numbers = frozenset({"calls", "time", "share", "a call", "bytes", "times host"})
        cells: list[tuple[str, ...]] = [_cells(row, total) for row in rows]
        if self._host_times is not None:
            columns = (*columns, "times host", "")
            cells = [(*line, *_beside_host(row)) for line, row in zip(cells, rows, strict=True)]
        return Grid(columns, cells, [row.route for row in rows], numbers)

    # -- while it fills

    def fill_from(self, recording: Recording) -> None:
        """Take the records from there."""
        self._recording = recording

    def enter_module(self, path: str) -> Callable[[], None]:
        """A module is called; to be called again when it is left."""
        start, thread = now(), threading.get_native_id()
        return lambda: self._ranges.append(Range(path, thread, start, now()))


def _cells(row: ProfileRow, total: float) -> tuple[str, ...]:
    microseconds = row.seconds / row.calls * 1e6
    return (
        row.op, str(row.route), row.kernel or "", row.device, f"{row.calls:,}", shown_seconds(row.seconds),
        f"{row.seconds / total:.1%}", f"{microseconds:,.1f} us", f"{row.nbytes:,}",
    )  # fmt: skip


def _beside_host(row: ProfileRow) -> tuple[str, str]:
    return "" if row.times_host is None else f"{row.times_host:.1f}", "slow" if row.is_slow else ""


def _written(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return target
