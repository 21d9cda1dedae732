"""How the benchmarks measure: two pieces of work in turn, in one process, on one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Work = Callable[[], Any]
Context = Callable[[], AbstractContextManager[Any]]


class Comparison(NamedTuple):
    """Medians over the rounds: microseconds of a call of each, and of the ratio routed / baseline of one round."""

    routed: float
    baseline: float
    ratio: float


def seconds_per_call(work: Work, calls: int) -> float:
    """Mean processor time of one call, in seconds: what else the machine does counts for nothing."""
    start = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - start) / calls


def calls_that_take(seconds: float, work: Work) -> int:
    """How often to call ``work`` for a measurement to take about so long."""
    calls = 1
    while (taken := calls * seconds_per_call(work, calls)) < seconds / 4 and calls < 1000:
        calls *= 4
    return max(1, round(calls * seconds / max(taken, 1e-6)))


def compare(
    routed: Work, baseline: Work, calls: int, *, rounds: int, session: Context, around_baseline: Context
) -> Comparison:
    """Measure both in turn, so that what slows the machine down for a while slows both."""
    rows = []
    for _ in range(rounds):
        with around_baseline():
            seconds_per_call(baseline, 3)
            base = seconds_per_call(baseline, calls)
        with session():
            seconds_per_call(routed, 3)  # routes are resolved once a session
            rows.append((seconds_per_call(routed, calls), base))
    return Comparison(
        statistics.median(r for r, _ in rows) * 1e6,
        statistics.median(b for _, b in rows) * 1e6,
        statistics.median(r / b for r, b in rows),
    )
