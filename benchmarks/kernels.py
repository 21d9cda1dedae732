"""What the reference vendor's kernels cost: each case on ``fl`` against PyTorch's own host kernels.

Interleaved in one process, on one thread; medians of ratios, torch time over ours: above 1 we are faster. Kernels are
compiled anew, into a cache of this run's own, and the time that took is printed; so is how high the mean could be if every
kernel took no time at all. Run with ``make bench``, or a part of it with ``ARGS="--only softmax"``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # numpy's BLAS reads it when it is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from models import gpt2_step, resnet_step
from rich.console import Console
from rich.table import Table

import flroute
from flroute.benchmark.cases import Case, cases
from flroute.benchmark.timing import Work, calls_that_take, compare, seconds_per_call

CAP = 1.5
"""A ratio counts for no more than this in the mean, so that a few easy wins cannot carry it."""
MEAN_GOAL, CASE_GOAL, FLOOR, STEP_GOAL = 0.9, 0.4, 0.25, 0.8
EXCEPTIONS = 3
"""Cases that may lie below CASE_GOAL, but not below FLOOR."""
DISPATCH, SHORT = 50, 15
"""Microseconds: in what takes torch less than the first, most of our time goes into routing the call, not into the kernel;
what takes it less than the second may not be able to reach CAP, however fast the kernel."""


class Row(NamedTuple):
    """What was measured: microseconds of a call, and how many times faster than torch ours is."""

    name: str
    ours: float
    torch: float
    ratio: float


STEPS: dict[str, Callable[[str], Work]] = {
    "training step: GPT-2, 6 layers of 256": gpt2_step,
    "training step: ResNet, 4x3x64x64": resnet_step,
}


# -- measuring and showing ----------------------------------------------------------------------------

SESSION = partial(flroute.enable, device="reference", default_device=False)


def measure(name: str, ours: Work, theirs: Work, rounds: int) -> Row:
    """Time one case."""
    with SESSION():
        ours()
        calls = calls_that_take(0.004, ours)
    calls = min(calls, calls_that_take(0.004, theirs))
    result = compare(
        ours, theirs, calls, rounds=rounds, session=SESSION, around_baseline=contextlib.nullcontext
    )
    return Row(name, result.routed, result.baseline, 1 / result.ratio)


def _measure_case(case: Case, rounds: int) -> Row:
    inputs = case.inputs()
    with SESSION():
        ours = case.make(*(x.to("fl") if isinstance(x, torch.Tensor) else x for x in inputs))
    return measure(case.name, ours, case.make(*inputs), rounds)


def routing_cost() -> float:
    """Microseconds of a routed call that has next to nothing to compute: the sign of one number."""
    one = torch.ones(1).to("fl")
    with SESSION():
        seconds_per_call(one.neg, 100)
        return statistics.median(seconds_per_call(one.neg, 1000) for _ in range(21)) * 1e6


@contextlib.contextmanager
def compiling_anew() -> Iterator[dict[str, float]]:
    """Kernels are not taken from the user's cache; the seconds that each takes to compile, by name and constants."""
    found: dict[str, float] = {}
    try:
        from flroute.reference_vendor.triton_cpu import direct, front_end
    except ModuleNotFoundError:  # the extra is not installed, and nothing is compiled
        yield found
        return
    really = direct._compile

    def timed(kernel: Any, label: str, signature: Any, constants: Any, sources: Any) -> Any:
        front_end.find(label)  # what is imported with the source is no part of it
        begin = perf_counter()
        code = really(kernel, label, signature, constants, sources)
        kinds = [kind for kind in signature.values() if kind.startswith("*")]
        values = [f"{name}={value}" for name, value in constants.items()]
        found[f"{label.rpartition(':')[2]}({', '.join([*kinds, *values])})"] = perf_counter() - begin
        return code

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, FLROUTE_CACHE_DIR=folder),
        patch.object(direct, "_compile", timed),
    ):
        yield found


def capped_mean(ratios: list[float]) -> float:
    """The geometric mean of the ratios, each taken as at most CAP."""
    return math.exp(sum(math.log(min(ratio, CAP)) for ratio in ratios) / len(ratios))


def highest_mean(rows: list[Row], fixed: float) -> tuple[int, float]:
    """How many cases are short, and what the mean could be at most if a call costs ``fixed`` microseconds at least.

    That is, with every kernel taking no time: a short case could be ``torch / fixed`` times faster, unless more was measured;
    all others are taken to reach CAP.
    """
    short = sum(row.torch < SHORT for row in rows)
    best = [max(row.ratio, row.torch / fixed) if row.torch < SHORT else CAP for row in rows]
    return short, capped_mean(best)


def _compile_times(seconds: dict[str, float]) -> Table:
    table = Table(title=f"{len(seconds)} kernels compiled, {sum(seconds.values()):.1f} s in all")
    table.add_column("kernel")
    table.add_column("seconds", justify="right")
    for name, taken in sorted(seconds.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{taken:.2f}")
    return table


def _table(rows: list[Row]) -> Table:
    table = Table(title="torch eager against the reference vendor, one thread; above 1 we are faster")
    table.add_column("case")
    for heading in ("ours us", "torch us", "torch / ours"):
        table.add_column(heading, justify="right")
    for row in sorted(rows, key=lambda row: row.ratio):
        style = "red" if row.ratio < FLOOR else "yellow" if row.ratio < CASE_GOAL else ""
        table.add_row(row.name, f"{row.ours:.1f}", f"{row.torch:.1f}", f"{row.ratio:.2f}", style=style)
    return table


def _say(console: Console, rows: list[Row], steps: list[Row], fixed: float) -> None:
    console.print(_table(rows + steps))
    if rows:
        ratios = [row.ratio for row in rows]
        below = sum(ratio < CASE_GOAL for ratio in ratios)
        console.print(
            f"{len(rows)} cases, geometric mean of min(ratio, {CAP}): {capped_mean(ratios):.3f} (goal {MEAN_GOAL})"
        )
        long = [row.ratio for row in rows if row.torch > DISPATCH]
        if long:
            console.print(
                f"{len(long)} of them take torch more than {DISPATCH} us, the others measure dispatch: {capped_mean(long):.3f}"
            )
        console.print(
            f"below {CASE_GOAL}: {below} (at most {EXCEPTIONS}); below {FLOOR}: {sum(r < FLOOR for r in ratios)} (none)"
        )
        short, highest = highest_mean(rows, fixed)
        console.print(
            f"{short} cases take torch under {SHORT} us; a routed call costs {fixed:.1f} us before it computes: "
            f"with all others at {CAP} the mean could be at most {highest:.3f}"
        )
    for step in steps:
        console.print(f"{step.name}: {step.ratio:.2f} (goal {STEP_GOAL})")


def main() -> None:
    """Measure what was asked for and print it, the worst first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="cases whose name contains TEXT (repeatable)"
    )
    parser.add_argument("--rounds", type=int, default=11, help="measurements of each case (default 11)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return not options.only or any(text in name for text in options.only)

    torch.set_num_threads(1)
    with compiling_anew() as compiled:
        with torch.no_grad():
            rows = [_measure_case(case, options.rounds) for case in cases() if wanted(case.name)]
        steps = [
            measure(name, make("fl"), make("cpu"), options.rounds)
            for name, make in STEPS.items()
            if wanted(name)
        ]
    console = Console()
    if compiled:
        console.print(_compile_times(compiled))
    _say(console, rows, steps, routing_cost())
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows + steps], indent=1) + "\n")


if __name__ == "__main__":
    main()
