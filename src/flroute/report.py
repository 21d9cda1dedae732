"""The report of a session: its decisions as a table for terminals, notebooks and pages, as data, and in groups."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flroute.errors import FlrouteError
from flroute.groups import GROUPINGS, Groups, group, seconds_of
from flroute.routing.tallies import MAX_SIGNATURES
from flroute.tables import Grid, html_lines, html_part, in_text, page, shown_seconds
from flroute.vocabulary import Decision, Redirected, Route

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA_VERSION = 1

ORDERS: dict[str, Callable[[Decision], Any]] = {
    "calls": lambda d: -d.calls,
    "seconds": lambda d: -(d.seconds or 0.0),
    "bytes": lambda d: -(d.bytes_to_host + d.bytes_to_device),
    "op": lambda d: d.op,
    "module": lambda d: d.module or "",
    "route": lambda d: list(Route).index(Route(d.route)),
}


@dataclass(frozen=True)
class Total:
    """What all decisions of one route add up to; ``seconds`` is ``None`` when nothing was timed."""

    ops: int
    calls: int
    seconds: float | None


class Report:
    """What a session did: printed as a table, rendered in a notebook, written as JSON.

    Args:
        decisions: the session's decisions.
        device: the session's device, ``fl:0``.
        settings: the settings in force, for the record.
        trace_path: where the decisions were written, if they were.
        lost_records: how many of these could not be written.
        redirected: what named cuda and reached the device.
        reported: how many processes that this one started are added in.
        silent: how many of them left no report.

    Example:
        >>> from flroute import Decision, Reason, Route
        >>> add = Decision("aten::add.Tensor", Route.NATIVE, "acme/asm:add", "fl:0", Reason.MATCHED, calls=3)
        >>> erf = Decision("aten::erf", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, calls=1)
        >>> report = Report([add, erf], device="fl:0")
        >>> report.native_share
        0.75
        >>> [decision.op for decision in report.fallbacks]
        ['aten::erf']
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        *,
        device: str,
        settings: Mapping[str, Any] | None = None,
        trace_path: str | None = None,
        lost_records: int = 0,
        redirected: Sequence[Redirected] = (),
        reported: int = 0,
        silent: int = 0,
    ) -> None:
        self.decisions = tuple(decisions)
        self.device = device
        self.settings = dict(settings or {})
        self.trace_path, self.lost_records = trace_path, lost_records
        self.redirected = tuple(redirected)
        self.reported, self.silent = reported, silent
        self._order: Callable[[Decision], Any] | None = None  # of the table's lines; ``None`` as first taken

    @property
    def native_share(self) -> float | None:
        """Calls that a vendor computed, as a share of all calls that computed something; ``None`` without any.

        Computing calls are those of the routes ``native`` and ``fallback``. Views, copies and host calls compute
        nothing on the device, and a decomposed call is counted by its parts, which are calls of their own.
        """
        native = self.calls(Route.NATIVE)
        computed = native + self.calls(Route.FALLBACK)
        return native / computed if computed else None

    @property
    def fallbacks(self) -> list[Decision]:
        """Decisions whose work the host did."""
        return [decision for decision in self.decisions if decision.route == Route.FALLBACK]

    @property
    def bytes_to_host(self) -> int:
        """Bytes copied from the device."""
        return sum(decision.bytes_to_host for decision in self.decisions)

    @property
    def bytes_to_device(self) -> int:
        """Bytes copied to the device."""
        return sum(decision.bytes_to_device for decision in self.decisions)

    @property
    def totals(self) -> dict[Route, Total]:
        """Ops, calls and seconds of each route that occurred."""
        return {
            route: Total(len({d.op for d in chosen}), sum(d.calls for d in chosen), seconds_of(chosen))
            for route in Route
            if (chosen := [decision for decision in self.decisions if decision.route == route])
        }

    def calls(self, route: Route | str) -> int:
        """How many calls took ``route``."""
        return sum(decision.calls for decision in self.decisions if decision.route == route)

    def rows(self) -> list[Decision]:
        """The lines of the table: decisions of one op, route, kernel, device and reason, added up."""
        rows = added_up(self.decisions, lambda d: (d.op, d.route, d.kernel, d.device, d.reason))
        return rows if self._order is None else sorted(rows, key=self._order)

    def sorted_by(self, key: str) -> Report:
        """The same report with its decisions, and the lines of its table, sorted.

        Args:
            key: ``"calls"``, ``"seconds"`` or ``"bytes"``, the largest first; ``"op"`` or ``"module"``, by name; or ``"route"``.

        Raises:
            ValueError: another key.
        """
        if key not in ORDERS:
            raise ValueError(f"a report is sorted by {', '.join(ORDERS)}, not by {key!r}")
        report = copy.copy(self)
        report.decisions = tuple(sorted(self.decisions, key=ORDERS[key]))
        report._order = ORDERS[key]
        return report

    def of_processes(
        self, decisions: Sequence[Decision], redirected: Sequence[Redirected], *, reported: int, silent: int
    ) -> Report:
        """The same report with what other processes did; the arguments are those of the class."""
        report = copy.copy(self)
        report.decisions, report.redirected = tuple(decisions), tuple(redirected)
        report.reported, report.silent = reported, silent
        return report

    def grouped_by(self, key: str) -> Groups:
        """What the decisions add up to by op, module, route or phase, the group with most calls first.

        Module and phase are those of each signature's first call, unless the session has ``modules=True``.

        Args:
            key: ``"op"``, ``"module"``, ``"route"`` or ``"phase"``.

        Raises:
            ValueError: another key.

        Example:
            >>> from flroute import Decision, Reason, Route
            >>> erf = Decision("aten::erf", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, calls=2, module="head")
            >>> print(Report([erf], device="fl:0").grouped_by("module"))
            module  calls  native  fallback  time  to host  to device
            head        2       0         2              0          0
        """
        if key not in GROUPINGS:
            raise ValueError(f"a report is grouped by {', '.join(GROUPINGS)}, not by {key!r}")
        return group(self.decisions, key)

    @property
    def capped(self) -> list[str]:
        """Ops with so many signatures that those beyond the first ``MAX_SIGNATURES`` were added up."""
        return sorted({decision.op for decision in self.decisions if decision.rest})

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each decision and a column for each of its attributes.

        Raises:
            FlrouteError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise FlrouteError(
                "report.to_pandas() needs pandas, which is not installed: pip install pandas. "
                "report.to_dict()['decisions'] has the same rows."
            ) from error
        rows = [_plain(asdict(decision)) for decision in self.decisions]
        return pd.DataFrame(rows, columns=[field.name for field in fields(Decision)])

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as a page that needs no other file, and return ``path``; missing directories are made."""
        return _written(path, page(f"flroute: {self.device}", self._repr_html_()))

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {
            "schema_version": SCHEMA_VERSION,
            "device": self.device,
            "settings": {name: _plain(value) for name, value in self.settings.items()},
            "trace_path": self.trace_path,
            "lost_records": self.lost_records,
            "processes": {"reported": self.reported, "silent": self.silent},
            "native_share": self.native_share,
            "bytes_to_host": self.bytes_to_host,
            "bytes_to_device": self.bytes_to_device,
            "totals": {str(route): asdict(total) for route, total in self.totals.items()},
            "redirected": [asdict(use) for use in self.redirected],
            "decisions": [_plain(asdict(decision)) for decision in self.decisions],
        }

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write ``to_dict()`` to ``path`` and return it; missing directories are made."""
        return _written(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def summary(self) -> list[str]:
        """The report in a few lines of text, and every fallback with its reason."""
        lines = [f"device {self.device}: {counted(sum(d.calls for d in self.decisions), 'call')}"]
        lines += [
            f"  {route}: {counted(total.calls, 'call')} of {counted(total.ops, 'op')}{_in_words(total.seconds)}"
            for route, total in self.totals.items()
        ]
        share = self.native_share
        lines.append("native share: " + ("nothing was computed" if share is None else _percent(share)))
        lines.append(
            f"bytes moved: {self.bytes_to_device:,} to the device, {self.bytes_to_host:,} to the host"
        )
        fallbacks = added_up(self.fallbacks, lambda d: (d.op, d.reason, d.detail))
        lines.append("fallbacks:" if fallbacks else "fallbacks: none")
        lines += [
            f"  {d.op}, {counted(d.calls, 'call')}, first from {d.call_site or 'unknown'}: {d.reason}: {d.detail}"
            for d in fallbacks
        ]
        lines += self._redirected_in_words()
        if self.reported:
            lines.append(f"of this process and {counted(self.reported, 'other')} that it started")
        if self.silent:
            lines.append(
                f"without {counted(self.silent, 'process')} that it started, which left no report: killed, or running still"
            )
        if self.capped:
            lines.append(
                f"signatures beyond the first {MAX_SIGNATURES} of an op are added up: {', '.join(self.capped)}"
            )
        if self.trace_path:
            lost = (
                f", but for {counted(self.lost_records, 'record')} that could not be written"
                if self.lost_records
                else ""
            )
            lines.append(f"every decision is in {self.trace_path}{lost}")
        return lines

    def _redirected_in_words(self) -> list[str]:
        by_name: dict[str, list[Redirected]] = {}
        for use in self.redirected:
            by_name.setdefault(use.name, []).append(use)
        lines = ["redirected from cuda:"] if by_name else []
        for name, uses in by_name.items():
            more = f", and {counted(len(uses) - 1, 'other line')}" if len(uses) > 1 else ""
            calls = counted(sum(use.calls for use in uses), "call")
            lines.append(f"  {name}, {calls}, {max(uses, key=lambda use: use.calls).site}{more}")
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._grid(narrow=options.max_width < _WIDE).to_rich()
        yield Text("\n".join(["", *self.summary()]))

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        return html_part(self.html())

    def html(self) -> str:
        """The table and the summary, as a part of what a notebook shows."""
        return self._grid().to_html() + html_lines(self.summary())

    def _grid(self, *, narrow: bool = False) -> Grid:
        rows, cells = self.rows(), _narrow_cells if narrow else _cells
        columns = _NARROW_COLUMNS if narrow else _COLUMNS
        return Grid(columns, [cells(row) for row in rows], [row.route for row in rows], _NUMBERS)


_COLUMNS = ("op", "route", "kernel", "device", "calls", "time", "reason")
_NARROW_COLUMNS = ("op, kernel", "route", "calls", "time", "reason")
_NUMBERS = frozenset({"calls", "time"})
_WIDE = 132
"""Columns of a terminal that hold a line of the whole table; in fewer, the kernel stands below its op."""


def _cells(d: Decision) -> tuple[str, ...]:
    return (
        d.op,
        str(d.route),
        d.kernel or "",
        d.device,
        f"{d.calls:,}",
        shown_seconds(d.seconds),
        str(d.reason),
    )


def _narrow_cells(d: Decision) -> tuple[str, ...]:
    op, route, kernel, _, *rest = _cells(d)
    return (f"{op}\n  {kernel}" if kernel else op, route, *rest)


def added_up(decisions: Sequence[Decision], key: Callable[[Decision], object]) -> list[Decision]:
    """One decision for all that share a key, in the order first met."""
    groups: dict[object, list[Decision]] = {}
    for decision in decisions:
        groups.setdefault(key(decision), []).append(decision)
    return [
        replace(
            group[0],
            calls=sum(d.calls for d in group),
            seconds=seconds_of(group),
            bytes_to_host=sum(d.bytes_to_host for d in group),
            bytes_to_device=sum(d.bytes_to_device for d in group),
        )
        for group in groups.values()
    ]


def _written(path: str | os.PathLike[str], text: str) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def _in_words(seconds: float | None) -> str:
    return "" if seconds is None else f" in {shown_seconds(seconds)}"


def _percent(share: float) -> str:
    """``100.0%`` only when it is all: 0.99999 reads as 99.9%.

    Example:
        >>> _percent(1.0), _percent(0.99999)
        ('100.0%', '99.9%')
    """
    return f"{int(share * 1000) / 10:.1f}%"


def counted(number: int, word: str) -> str:
    """A number with its word, ``1 call`` or ``2 calls``."""
    plural = "es" if word.endswith("s") else "s"
    return f"{number:,} {word}" + ("" if number == 1 else plural)


def _plain(value: Any) -> Any:
    """Enums as their words, tuples as lists: what comes back from JSON equals what went in."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
