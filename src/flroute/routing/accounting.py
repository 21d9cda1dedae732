"""The decision log: one tally per distinct decision, counted on the hot path, rendered when asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from flroute.routing.caller import find_caller
from flroute.routing.tallies import MAX_SIGNATURES, Book, Choice, Key, Shapes, Tally, decisions_of
from flroute.routing.trace import Trace
from flroute.vocabulary import Decision, Reason, Route

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING}


class DecisionLog:
    """All decisions of a session, or of the process outside sessions.

    Args:
        warn_on_fallback: whether the first fallback of an op for a reason is a warning.
        trace: file for each decision when first taken, and for the totals.
        by_module: whether calls from different modules and phases are different decisions.
        observer: told each decision when it is first taken.
    """

    def __init__(
        self,
        *,
        warn_on_fallback: bool,
        trace: Trace | None = None,
        by_module: bool = False,
        observer: Callable[[Decision], None] | None = None,
    ) -> None:
        self.by_module, self.warn_on_fallback = by_module, warn_on_fallback
        self._pages = [Book()]
        self._past = Book()  # of inner sessions, and of pages that nobody reads any more
        self._announced = Book()
        self._lock = threading.Lock()
        self._warned: set[tuple[str, Reason]] = set()
        self._observer = observer
        self._trace = trace

    def tally(self, choice: Choice, dtypes: tuple[str, ...], shapes: Shapes) -> Tally:
        """The tally of this decision; announced when it is first taken."""
        page, key, caller = self._pages[-1], Key(choice, dtypes, shapes), None
        if self.by_module:
            caller = find_caller()
            key = key._replace(place=caller[1:])
        found = page.find(key)
        if found is not None:
            return found
        caller = caller or find_caller()
        with self._lock:
            found = page.open(key, choice, caller)
            is_new = self._announced.find(found.key) is None
            if is_new:
                self._announced.open(found.key, choice, caller)
        if is_new:
            self._announce(found.decision())  # outside the lock: an observer may compute on the device
        return found

    def _announce(self, decision: Decision) -> None:
        fallback = decision.route is Route.FALLBACK
        if not fallback:
            log_event("info", decision)
        elif self.warn_on_fallback and (decision.op, decision.reason) not in self._warned:
            self._warned.add((decision.op, decision.reason))
            log_event("warning", decision)
        if self._trace is not None:
            self._trace.decision(decision)
        if self._observer is not None:
            self._observer(decision)

    def decisions(self) -> list[Decision]:
        """Every decision that served at least one call, those of inner sessions included, in the order first taken."""
        return decisions_of([*self._past.tallies(), *self.counted_since(0)])

    def absorb(self, inner: DecisionLog) -> None:
        """Count what an inner session counted."""
        with self._lock:
            self._past.add([*inner._past.tallies(), *inner.counted_since(0)])

    def turn_page(self) -> int:
        """Count from zero on a new page, whose number is returned: what is counted from now on has call sites of its own.

        Whoever turns a page must make its router forget its routes: these hold the counters of the old page.
        """
        with self._lock:
            self._pages.append(Book())
            return len(self._pages) - 1

    def counted_since(self, page: int) -> list[Tally]:
        """What was counted on this page and those after it; without what inner sessions counted."""
        return [tally for book in self._pages[page:] for tally in book.tallies()]

    def forget_pages(self) -> None:
        """Add the pages up into one: nobody asks for them any more."""
        with self._lock:
            self._past.add([tally for page in self._pages[:-1] for tally in page.tallies()])
            del self._pages[:-1]

    def count_anew(self) -> None:
        """Forget what was counted, in a forked process: of its threads there is this one.

        Whoever asks for it must make the router forget its routes, which hold the counters.
        """
        self._lock = threading.Lock()
        self._pages, self._past = [Book()], Book()

    def close(self) -> None:
        """Write the totals to the trace and close it."""
        if self._trace is not None:
            self._trace.close(self.decisions())

    @property
    def lost_records(self) -> int:
        """Records the trace lacks because it could not be written."""
        return self._trace.lost if self._trace is not None else 0


class Counts:
    """The tallies of one choice for calls of the same dtypes, by the shapes of the call.

    Args:
        log: where they are kept.
        choice: what was decided.
        dtypes: of the call's tensors.
    """

    __slots__ = ("_by_module", "_log", "_tallies", "choice", "dtypes")

    def __init__(self, log: DecisionLog, choice: Choice, dtypes: tuple[str, ...]) -> None:
        self._log, self.choice, self.dtypes = log, choice, dtypes
        self._by_module = log.by_module
        self._tallies: dict[Shapes, Tally] = {}

    def __call__(self, shapes: Shapes) -> Tally:
        """The tally of a call; to be asked once the call has succeeded: what never served is never announced."""
        if self._by_module:
            return self._log.tally(self.choice, self.dtypes, shapes)
        found = self._tallies.get(shapes)
        if found is None:
            if len(self._tallies) >= 2 * MAX_SIGNATURES:
                self._tallies.clear()
            found = self._tallies[shapes] = self._log.tally(self.choice, self.dtypes, shapes)
        return found


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
        "module": decision.module,
        "phase": str(decision.phase),
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
