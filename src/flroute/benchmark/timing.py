"""Two pieces of work timed in turn, in one process: what slows the machine down for a while slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

Work = Callable[[], Any]
Context = Callable[[], AbstractContextManager[Any]]
Clock = Callable[[], float]


class Comparison(NamedTuple):
    """Medians over the rounds: microseconds of a call of each, and of the ratio routed / baseline of one round."""

    routed: float
    baseline: float
    ratio: float


def seconds_per_call(work: Work, calls: int, clock: Clock = time.process_time) -> float:
    """Mean time of one call, in seconds; processor time unless said otherwise: what else the machine does counts for nothing."""
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def calls_that_take(seconds: float, work: Work, clock: Clock = time.process_time) -> int:
    """How often to call ``work`` for a measurement to take about so long."""
    calls = 1
    while (taken := calls * seconds_per_call(work, calls, clock)) < seconds / 4 and calls < 1000:
        calls *= 4
    return max(1, round(calls * seconds / max(taken, 1e-6)))


def compare(
    routed: Work,
    baseline: Work,
    calls: int,
    *,
    rounds: int,
    session: Context,
    around_baseline: Context = nullcontext,
    clock: Clock = time.process_time,
) -> Comparison:
    """Measure both in turn.

    Args:
        routed: called inside ``session``.
        baseline: called inside ``around_baseline``.
        calls: of each, in each round.
        rounds: how often both are measured; at least one.
        session: makes the context of a round.
        around_baseline: likewise.
        clock: in seconds.
    """
    rows = []
    for _ in range(rounds):
        with around_baseline():
            seconds_per_call(baseline, 3)
            base = seconds_per_call(baseline, calls, clock)
        with session():
            seconds_per_call(routed, 3)  # routes are resolved once a session
            rows.append((seconds_per_call(routed, calls, clock), base))
    return Comparison(
        statistics.median(r for r, _ in rows) * 1e6,
        statistics.median(b for _, b in rows) * 1e6,
        statistics.median(r / b for r, b in rows),
    )
