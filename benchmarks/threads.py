"""What a second thread is worth: compiled kernels at a million elements, in turn on one thread and on two.

The turns are of twenty launches, since threads are meant for launches that follow each other. A ratio is a launch's time on
one thread over that of its counterpart on two: the median of them, and the ratio of the best launches. What else loads the
machine's cores counts against two threads: the load average is printed. Run with ``python benchmarks/threads.py``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import triton
import triton.language as tl
from rich.console import Console
from rich.table import Table

from flroute.reference_vendor.triton_cpu import direct
from flroute.reference_vendor.triton_cpu.launcher import Kernel

SIZE, BLOCK = 10**6, 1024
TURN = 20
GOAL = 1.6


@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    """Next to no work for each number read and written."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    """Some dozens of operations for each."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)), mask=i < n)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    """Two reductions and an exponential."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + i, e / tl.sum(e, 0), mask=i < n)


class Row(NamedTuple):
    """Microseconds of a launch on one thread and on two, and what the second is worth."""

    name: str
    one: float
    two: float
    ratio: float
    best_one: float
    best_two: float

    @property
    def best_ratio(self) -> float:
        """Of the best launches."""
        return self.best_one / self.best_two


def compare(name: str, launch: Callable[[int], None], launches: int) -> Row:
    """Time launches on one thread and on two, in turn."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(-(-launches // TURN)):
        for threads, found in times.items():
            for _ in range(TURN):
                begin = perf_counter()
                launch(threads)
                found.append((perf_counter() - begin) * 1e6)
    one, two = times.values()
    ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
    return Row(name, statistics.median(one), statistics.median(two), ratio, min(one), min(two))


def measure(kernel: Kernel, launches: int) -> Row:
    """Time one kernel, and see that two threads compute what one does."""
    x = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    outs = {1: np.zeros_like(x), 2: np.zeros_like(x)}
    grid = (-(-SIZE // BLOCK),)

    def launch(threads: int) -> None:
        kernel.launch(grid, (x, outs[threads], SIZE), threads)

    compare("warm-up", launch, 10)
    row = compare(kernel.code.name, launch, launches)
    if not np.array_equal(outs[1], outs[2]):
        raise AssertionError(f"{row.name}: two threads gave another result than one")
    return row


def _table(rows: list[Row]) -> Table:
    table = Table(title=f"{SIZE:,} float32 elements: one thread against two, in turn")
    table.add_column("kernel")
    for heading in ("one us", "two us", "median ratio", "best one us", "best two us", "ratio of bests"):
        table.add_column(heading, justify="right")
    for row in rows:
        times = (row.one, row.two, row.best_one, row.best_two)
        one, two, best_one, best_two = (f"{time:.0f}" for time in times)
        table.add_row(row.name, one, two, f"{row.ratio:.2f}", best_one, best_two, f"{row.best_ratio:.2f}")
    return table


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--launches", type=int, default=300, help="of each kernel on each number of threads (default 300)"
    )
    options = parser.parse_args()
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    kernels = [direct.load(kernel, signature, {"BLOCK": BLOCK}) for kernel in (add, gelu, softmax)]
    before = os.getloadavg()[0]
    rows = [measure(kernel, options.launches) for kernel in kernels]
    console = Console()
    console.print(_table(rows))
    console.print(
        f"goal: {GOAL}; load average {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
