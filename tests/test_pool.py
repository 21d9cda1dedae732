"""The caching pool: blocks never overlap, no byte is lost, and what is free is found again."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from flroute.device.pool import ALIGNMENT, CachingPool, PoolFullError

KIB, MIB = 1 << 10, 1 << 20


class Addresses:
    """Address space that segments come from, next to each other: a pool must not join what belongs to two of them."""

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}
        self.top = ALIGNMENT
        self.full = False

    def reserve(self, nbytes: int) -> int:
        if self.full:
            raise MemoryError("told to be full")
        address, self.top = self.top, self.top + nbytes
        self.segments[address] = nbytes
        return address

    def release(self, address: int, nbytes: int) -> None:
        assert self.segments.pop(address) == nbytes

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())


def make(**options: int) -> tuple[CachingPool, Addresses]:
    space = Addresses()
    return CachingPool(space.reserve, space.release, **options), space


class Workload(RuleBasedStateMachine):
    """Any order of requests, frees and trims, with and without a limit and ``max_split``."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.space = make()
        self.live: dict[int, int] = {}

    @precondition(lambda self: not self.live and not self.space.segments)
    @rule(
        limit=st.none() | st.integers(1 * MIB, 64 * MIB),
        max_split=st.none() | st.integers(64 * KIB, 8 * MIB),
    )
    def configure(self, limit: int | None, max_split: int | None) -> None:
        self.pool.limit, self.pool.max_split = limit, max_split

    @rule(
        target=blocks,
        nbytes=st.integers(0, 4 * KIB)
        | st.integers(1, 2 * MIB)
        | st.integers(1, 30 * MIB)
        | st.sampled_from([0, 64, 4096, 1 * MIB]),
    )
    def allocate(self, nbytes: int) -> int | None:
        try:
            address = self.pool.allocate(nbytes)
        except PoolFullError as error:
            full = error
        else:
            assert address % ALIGNMENT == 0
            self.live[address] = nbytes
            return address
        assert self.pool.limit is not None
        assert full.asked == nbytes
        assert full.stats.reserved == self.space.reserved
        assert full.stats.largest_free < nbytes * 1.07 or self.pool.max_split is not None
        return None

    @rule(block=consumes(blocks))
    def free(self, block: int | None) -> None:
        if block is not None:
            self.pool.free(block)
            del self.live[block]

    @rule()
    def trim(self) -> None:
        before = self.space.reserved
        assert self.pool.trim() == before - self.space.reserved
        for start, size in self.space.segments.items():
            assert any(start <= address < start + size for address in self.live), (
                "a segment nobody uses is left"
            )

    @rule()
    def look(self) -> None:
        stats = self.pool.stats()
        assert stats.reserved == self.space.reserved
        assert stats.segments == len(self.space.segments)
        assert stats.used + stats.free == stats.reserved
        assert 0 <= stats.fragmented <= stats.free
        assert stats.largest_free <= stats.free
        assert self.pool.cached() == stats.free
        assert sum(self.live.values()) <= stats.used
        if not self.live:
            assert stats.used == stats.fragmented == 0

    @invariant()
    def blocks_are_apart_and_inside(self) -> None:
        ends = sorted((address, address + max(nbytes, 1)) for address, nbytes in self.live.items())
        for (_, end), (start, _) in itertools.pairwise(ends):
            assert end <= start, "two blocks overlap"
        segments = sorted(self.space.segments.items())
        for start, end in ends:
            assert any(base <= start and end <= base + size for base, size in segments), (
                "outside of every segment"
            )
        if self.pool.limit is not None:
            assert self.space.reserved <= self.pool.limit

    def teardown(self) -> None:
        for address in list(self.live):
            self.pool.free(address)
        self.pool.trim()
        assert self.space.segments == {}, "bytes were lost"
        assert self.pool.stats().reserved == 0


TestWorkload = Workload.TestCase
TestWorkload.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_freed_block_is_what_the_next_request_of_its_size_gets() -> None:
    pool, space = make()
    first = pool.allocate(100 * KIB)
    other = pool.allocate(100 * KIB)
    pool.free(first)
    assert pool.allocate(100 * KIB - 100) == first, "bins are not so fine that a few bytes matter"
    assert len(space.segments) == 1
    assert other != first


def test_neighbours_are_joined_for_a_larger_request() -> None:
    pool, space = make()
    blocks = [pool.allocate(256 * KIB) for _ in range(8)]
    assert len(space.segments) == 1
    for block in blocks:
        pool.free(block)
    assert pool.allocate(1536 * KIB) == min(blocks)
    assert len(space.segments) == 1


def test_two_segments_are_not_joined() -> None:
    pool, space = make()
    one, two = pool.allocate(30 * MIB), pool.allocate(30 * MIB)
    assert two == one + 30 * MIB
    pool.free(one)
    pool.free(two)
    assert pool.stats().largest_free == 30 * MIB
    pool.allocate(60 * MIB)
    assert len(space.segments) == 3


def test_blocks_above_max_split_are_kept_whole() -> None:
    pool, space = make(max_split=4 * MIB)
    large = pool.allocate(16 * MIB)
    pool.free(large)
    small = pool.allocate(64 * KIB)
    assert not large <= small < large + 16 * MIB
    assert pool.allocate(15 * MIB) == large, "a little smaller is near enough"
    assert sorted(space.segments.values()) == [2 * MIB, 16 * MIB]


def test_what_is_not_used_makes_room_under_a_limit() -> None:
    pool, space = make(limit=64 * MIB)
    for size in (10, 20, 30, 40, 50, 60):
        pool.free(pool.allocate(size * MIB))
        assert space.reserved <= 64 * MIB


def test_a_full_pool_says_what_it_holds_and_goes_on() -> None:
    pool, _ = make(limit=8 * MIB)
    blocks = [pool.allocate(896 * KIB) for _ in range(8)]
    for block in blocks[::2]:
        pool.free(block)
    with pytest.raises(PoolFullError, match="limit") as caught:
        pool.allocate(3 * MIB)
    stats = caught.value.stats
    assert caught.value.asked == 3 * MIB
    assert stats.limit == stats.reserved == 8 * MIB
    assert stats.used == 4 * 896 * KIB
    assert stats.fragmented == stats.free == 8 * MIB - 4 * 896 * KIB
    assert 896 * KIB <= stats.largest_free < 3 * MIB
    assert pool.allocate(896 * KIB) in blocks


def test_a_full_system_is_a_full_pool() -> None:
    pool, space = make()
    kept = pool.allocate(1000)
    space.full = True
    assert pool.allocate(1000) != kept
    with pytest.raises(PoolFullError, match="told to be full"):
        pool.allocate(3 * MIB)
    space.full = False
    pool.allocate(3 * MIB)


def test_a_block_is_freed_once() -> None:
    pool, _ = make()
    block = pool.allocate(1000)
    pool.free(block)
    for address in (block, 12345):
        with pytest.raises(ValueError, match=hex(address)):
            pool.free(address)


def test_a_finalizer_may_free_and_allocate_in_the_middle_of_an_allocation() -> None:
    """A collection can start anywhere; what dies in it must find no lock held against it."""
    space = Addresses()
    done = []

    def reserve(nbytes: int) -> int:
        if not done:
            done.append(True)
            pool.free(held)
            done.append(pool.allocate(5 * MIB))
        return space.reserve(nbytes)

    pool = CachingPool(reserve, space.release)
    done.append(True)
    held = pool.allocate(1000)
    done.clear()
    block = pool.allocate(3 * MIB)
    assert {block, done[1]} == pool._used.keys()
    pool.free(block)
    pool.free(done[1])
    pool.trim()
    assert space.segments == {}


def test_threads() -> None:
    pool, space = make()
    errors: list[str] = []
    owners: dict[int, int] = {}

    def work(number: int) -> None:
        choose = random.Random(number)
        mine: list[int] = []
        for _ in range(1500):
            if mine and choose.random() < 0.5:
                address = mine.pop(choose.randrange(len(mine)))
                if owners.pop(address) != number:
                    errors.append("handed out twice")
                pool.free(address)
            else:
                address = pool.allocate(choose.choice([500, 4000, 4000, 70_000, 3 * MIB]))
                if owners.setdefault(address, number) != number:
                    errors.append("handed out twice")
                mine.append(address)
            if choose.random() < 0.01:
                pool.trim()
        for address in mine:
            owners.pop(address)
            pool.free(address)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    pool.trim()
    assert space.segments == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_in_the_middle_can_go_on() -> None:
    pool, _ = make()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pool.free(pool.allocate(3 * MIB))
            pool.trim()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                pool.allocate(5 * MIB)
                os._exit(0)
            deadline = time.monotonic() + 20
            while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.001)
            if done == (0, 0):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            assert done == (child, 0), "the child waits for a thread it does not have"
    finally:
        stop.set()
        thread.join()


def test_a_long_random_workload_reuses_what_it_has() -> None:
    pool, space = make()
    choose = random.Random(0)
    reserved = 0

    def reserve(nbytes: int) -> int:
        nonlocal reserved
        reserved += 1
        return space.reserve(nbytes)

    pool = CachingPool(reserve, space.release)
    live: list[tuple[int, int]] = []
    used = peak = 0
    for _ in range(20_000):
        if len(live) > 100:
            address, nbytes = live.pop(choose.randrange(len(live)))
            pool.free(address)
            used -= nbytes
        nbytes = int(2 ** choose.uniform(8, 23))
        live.append((pool.allocate(nbytes), nbytes))
        used += nbytes
        peak = max(peak, used)
    assert reserved < 200, "out of 20,000 requests"
    assert space.reserved < 1.5 * peak, "more is fragmented than need be"
