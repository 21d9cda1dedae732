"""What decisions add up to by op, module, route or phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flroute.tables import Grid, html_part, in_text, shown_seconds
from flroute.vocabulary import Decision, Route

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

GROUPINGS: dict[str, Callable[[Decision], str]] = {
    "op": lambda d: d.op,
    "module": lambda d: d.module or "(no module)",
    "route": lambda d: str(d.route),
    "phase": lambda d: str(d.phase),
}

"""What a report can be grouped by, and how."""


@dataclass(frozen=True)
class Group:
    """What the decisions of one group add up to.

    Attributes:
        name: the op, module, route or phase.
        calls: all calls.
        native: those that a vendor computed.
        fallback: those that the host computed.
        seconds: time spent; ``None`` when nothing was timed.
        bytes_to_host: copied from the device.
        bytes_to_device: copied to it.
    """

    name: str
    calls: int
    native: int
    fallback: int
    seconds: float | None
    bytes_to_host: int
    bytes_to_device: int


@dataclass(frozen=True)
class Groups:
    """Groups of decisions: prints as a table, renders in a notebook, and can be iterated over.

    Attributes:
        by: what they are grouped by.
        groups: the group with most calls first.
    """

    by: str
    groups: tuple[Group, ...]

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._grid().to_rich()

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        return html_part(self._grid().to_html())

    def _grid(self) -> Grid:
        columns = (self.by, "calls", "native", "fallback", "time", "to host", "to device")
        rows = [
            (g.name, f"{g.calls:,}", f"{g.native:,}", f"{g.fallback:,}", shown_seconds(g.seconds),
             f"{g.bytes_to_host:,}", f"{g.bytes_to_device:,}")
            for g in self.groups
        ]  # fmt: skip
        words = [Route.FALLBACK if g.fallback else "" for g in self.groups]
        return Grid(columns, rows, words, frozenset(columns[1:]))


def group(decisions: Sequence[Decision], by: str) -> Groups:
    """The groups of ``decisions`` by one of ``GROUPINGS``."""
    parts: dict[str, list[Decision]] = {}
    for decision in decisions:
        parts.setdefault(GROUPINGS[by](decision), []).append(decision)
    groups = [_added_up(name, part) for name, part in parts.items()]
    return Groups(by, tuple(sorted(groups, key=lambda g: (-g.calls, g.name))))


def _added_up(name: str, decisions: Sequence[Decision]) -> Group:
    of_route = {route: sum(d.calls for d in decisions if d.route == route) for route in Route}
    return Group(
        name, sum(of_route.values()), of_route[Route.NATIVE], of_route[Route.FALLBACK], seconds_of(decisions),
        sum(d.bytes_to_host for d in decisions), sum(d.bytes_to_device for d in decisions),
    )  # fmt: skip


def seconds_of(decisions: Sequence[Decision]) -> float | None:
    """The time of all that was timed; ``None`` when nothing was."""
    timed = [decision.seconds for decision in decisions if decision.seconds is not None]
    return sum(timed) if timed else None
