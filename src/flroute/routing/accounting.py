"""The decision log: one tally per distinct decision, counted on the hot path, rendered when asked."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flroute.routing.trace import Trace
from flroute.vocabulary import Decision, Reason, Rejection, Route

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)

Key = tuple[str, Route, "str | None", str, Reason, str, tuple[Rejection, ...], tuple[str, ...]]


class Seen(NamedTuple):
    """What a decision remembers of the tensors of its first call: never the tensors."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def seen_of(tensors: Iterable[torch.Tensor]) -> Seen:
    """Dtypes and shapes, in order; a nested tensor has no shape."""
    tensors = list(tensors)
    return Seen(
        tuple(str(t.dtype).removeprefix("torch.") for t in tensors),
        tuple(() if t.is_nested else tuple(t.shape) for t in tensors),
    )


_numbers = itertools.count()


class Tally:
    """A decision being counted. ``tick()`` counts a call: atomic, and cheaper than an attribute update under a lock."""

    __slots__ = (
        "_count", "bytes_to_device", "bytes_to_host", "call_site", "key", "more_calls", "number", "seconds", "shapes", "tick",
    )  # fmt: skip

    def __init__(self, key: Key, shapes: tuple[tuple[int, ...], ...], call_site: str | None) -> None:
        self.key, self.shapes, self.call_site = key, shapes, call_site
        self.number = next(_numbers)
        """In the order in which decisions are first taken, in all sessions."""
        self._count = itertools.count()
        self.tick: Callable[[], int] = self._count.__next__
        self.more_calls = 0
        self.seconds: float | None = None
        self.bytes_to_host = self.bytes_to_device = 0

    @property
    def calls(self) -> int:
        """How often ``tick`` was called; ``repr`` shows an itertools.count without advancing it."""
        return int(repr(self._count)[6:-1]) + self.more_calls

    def decision(self) -> Decision:
        """The decision as it stands now."""
        op, route, kernel, device, reason, detail, rejected, dtypes = self.key
        return Decision(
            op, route, kernel, device, reason, detail, rejected, dtypes, self.shapes, self.calls, self.seconds,
            self.bytes_to_host, self.bytes_to_device, self.call_site,
        )  # fmt: skip

    def add(self, other: Tally) -> None:
        """Count what ``other`` counted."""
        self.more_calls += other.calls
        self.bytes_to_host += other.bytes_to_host
        self.bytes_to_device += other.bytes_to_device
        if other.seconds is not None:
            self.seconds = (self.seconds or 0.0) + other.seconds


class DecisionLog:
    """All decisions of a session, or of the process outside sessions."""

    def __init__(
        self, *, warn_on_fallback: bool, trace: str | None, observer: Callable[[Decision], None] | None = None
    ) -> None:
        self._pages: list[dict[Key, Tally]] = [{}]
        self._past: dict[Key, Tally] = {}  # of inner sessions, and of pages that nobody reads any more
        self._announced: set[Key] = set()
        self._lock = threading.Lock()
        self._warn = warn_on_fallback
        self._warned: set[tuple[str, Reason]] = set()
        self._observer = observer
        self._trace = Trace(trace) if trace is not None else None

    def tally(self, key: Key, shapes: tuple[tuple[int, ...], ...]) -> Tally:
        """The tally of this decision; announced when it is first taken."""
        page = self._pages[-1]
        found = page.get(key)
        if found is not None:
            return found
        made = Tally(key, shapes, call_site())
        with self._lock:
            found = page.setdefault(key, made)
            is_new = key not in self._announced
            self._announced.add(key)
        if is_new:
            self._announce(made.decision())  # outside the lock: an observer may compute on the device
        return found

    def _announce(self, decision: Decision) -> None:
        fallback = decision.route is Route.FALLBACK
        if not fallback:
            log_event("info", decision)
        elif self._warn and (decision.op, decision.reason) not in self._warned:
            self._warned.add((decision.op, decision.reason))
            log_event("warning", decision)
        if self._trace is not None:
            self._trace.decision(decision)
        if self._observer is not None:
            self._observer(decision)

    def decisions(self) -> list[Decision]:
        """Every decision that served at least one call, those of inner sessions included, in the order first taken."""
        return decisions_of([*list(self._past.values()), *self.counted_since(0)])

    def absorb(self, inner: DecisionLog) -> None:
        """Count what an inner session counted."""
        with self._lock:
            _add_up(self._past, [*inner._past.values(), *inner.counted_since(0)])

    def turn_page(self) -> int:
        """Count from zero on a new page, whose number is returned: what is counted from now on has call sites of its own.

        Whoever turns a page must make its router forget its routes: these hold the counters of the old page.
        """
        with self._lock:
            self._pages.append({})
            return len(self._pages) - 1

    def counted_since(self, page: int) -> list[Tally]:
        """What was counted on this page and those after it; without what inner sessions counted."""
        return [tally for counted in self._pages[page:] for tally in list(counted.values())]

    def forget_pages(self) -> None:
        """Add the pages up into one: nobody asks for them any more."""
        with self._lock:
            _add_up(self._past, [tally for page in self._pages[:-1] for tally in page.values()])
            del self._pages[:-1]

    def close(self) -> None:
        """Write the totals to the trace and close it."""
        if self._trace is not None:
            self._trace.close(self.decisions())

    @property
    def lost_records(self) -> int:
        """Records the trace lacks because it could not be written."""
        return self._trace.lost if self._trace is not None else 0


def decisions_of(tallies: Iterable[Tally]) -> list[Decision]:
    """The decisions that served at least one call; those with one key added up."""
    total: dict[Key, Tally] = {}
    _add_up(total, tallies)
    in_order = sorted(total.values(), key=lambda tally: tally.number)
    return [decision for tally in in_order if (decision := tally.decision()).calls]


def _add_up(total: dict[Key, Tally], tallies: Iterable[Tally]) -> None:
    for tally in tallies:
        mine = total.get(tally.key)
        if mine is None:
            mine = total[tally.key] = Tally(tally.key, tally.shapes, tally.call_site)
            mine.number = tally.number
        elif tally.number < mine.number:
            mine.number, mine.shapes, mine.call_site = tally.number, tally.shapes, tally.call_site
        mine.add(tally)


def call_site() -> str | None:
    """``file:line`` of the innermost frame outside PyTorch and flroute."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, _TORCH, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def log_event(level: str, decision: Decision) -> None:
    """A structlog event for a first decision.

    A program that configured structlog gets it there; any other gets it on the standard logger ``flroute``, where
    warnings show on stderr and the rest does not.
    """
    import structlog  # a tenth of a second, and only a program that routes something needs it

    if not structlog.is_configured() and not logging.getLogger("flroute").isEnabledFor(_LEVELS[level]):
        return
    fields: dict[str, Any] = {
        "op": decision.op,
        "route": str(decision.route),
        "kernel": decision.kernel,
        "device": decision.device,
        "reason": str(decision.reason),
        "detail": decision.detail,
        "shapes": decision.shapes,
        "call_site": decision.call_site,
    }
    event = "host fallback" if decision.route is Route.FALLBACK else "route chosen"
    logger = structlog.get_logger("flroute") if structlog.is_configured() else _standard_logger()
    getattr(logger, level)(event, **fields)


@cache
def _standard_logger() -> Any:
    import structlog

    return structlog.wrap_logger(
        logging.getLogger("flroute"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
