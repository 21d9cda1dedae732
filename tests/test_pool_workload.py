"""The pool under a long random workload: no block overlaps another, what is fragmented is reported, memory is used again."""

from __future__ import annotations

import bisect
import random

import pytest

from flroute.device.pool import CachingPool, PoolStats

MIB = 1 << 20
REQUESTS = 100_000


class Live:
    """The blocks handed out, in address order."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}

    def add(self, address: int, nbytes: int) -> None:
        at = bisect.bisect(self.starts, address)
        if at:
            before = self.starts[at - 1]
            assert before + self.sizes[before] <= address, "it overlaps the block before"
        if at < len(self.starts):
            assert address + nbytes <= self.starts[at], "it overlaps the block after"
        self.starts.insert(at, address)
        self.sizes[address] = nbytes

    def take(self, number: int) -> int:
        address = self.starts.pop(number)
        del self.sizes[address]
        return address


def run(sizes: str, max_split: int | None) -> tuple[PoolStats, float, int]:
    """Figures at the end, the largest part that was ever fragmented, and the most bytes asked for at once."""
    top = 64

    def reserve(nbytes: int) -> int:
        nonlocal top
        top += nbytes
        return top - nbytes

    pool = CachingPool(reserve, lambda address, nbytes: None, max_split=max_split)
    choose, live = random.Random(0), Live()
    peak, worst, asked = 0, 0.0, 0
    for number in range(REQUESTS):
        while len(live.starts) > choose.randrange(40, 160):
            address = live.starts[at := choose.randrange(len(live.starts))]
            asked -= live.sizes[address]
            live.take(at)
            pool.free(address)
        nbytes = {
            "any": lambda: int(2 ** choose.uniform(6, 24)),
            "few": lambda: choose.choice([4096, 65536, 1 * MIB, 3 * MIB + 17, 12 * MIB]),
            "growing": lambda: int(2 ** choose.uniform(8, 14 + 10 * number / REQUESTS)),
        }[sizes]()
        live.add(pool.allocate(nbytes), nbytes)
        asked += nbytes
        peak = max(peak, asked)
        if number % 10_000 == 9_999:
            stats = pool.stats()
            worst = max(worst, stats.fragmented / stats.reserved)
            assert stats.used >= asked
    return pool.stats(), worst, peak


@pytest.mark.parametrize("max_split", [None, 8 * MIB], ids=["split", "large ones kept whole"])
@pytest.mark.parametrize("sizes", ["any", "few", "growing"])
def test_a_hundred_thousand_requests(sizes: str, max_split: int | None) -> None:
    stats, worst, peak = run(sizes, max_split)
    print(
        f"{sizes}: {stats.requests} requests, {stats.new_segments} needed new memory, reuse {stats.reuse:.2%}; "
        f"{stats.reserved / peak:.2f} times the most that was asked for is reserved, at most {worst:.1%} of it fragmented"
    )
    assert stats.requests == REQUESTS
    assert stats.reuse > 0.9
    assert 0 < worst < 1
    assert stats.reserved < 2.5 * peak
