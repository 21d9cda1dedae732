"""A caching pool: blocks cut from large segments of memory, kept when they are freed and handed out again.

Memory that is new to a process is slow, a driver's to ask for and the host's to touch first; what a model needs in one step it
needs again in the next. Only numbers pass through here, so any memory that has addresses can be pooled.

A freed block is first kept whole, in a bin of its size, where the next request of that size finds it: no lock, no search.
Only when a request finds its bin empty are blocks cut anew: from the smallest free piece that is large enough; failing that,
from what results when the blocks in all bins are joined with their free neighbours; failing that, from a new segment.
"""

from __future__ import annotations

import bisect
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ALIGNMENT = 64
"""Every block starts at, and has a size of, a multiple of this many bytes."""

_MIB = 1 << 20
_SEGMENTS = ((1 * _MIB, 2 * _MIB), (10 * _MIB, 20 * _MIB))
"""For requests below the first size, segments of the second; larger requests get segments of their own."""
_GRAIN = 2 * _MIB  # sizes of segments are multiples of it: the size of a huge page
_DIVISIONS = 16
_SLACK = 4  # a block too large to be split may exceed a request by this part of it


@dataclass(frozen=True)
class PoolStats:
    """What a pool holds, in bytes.

    Attributes:
        reserved: of all segments.
        used: of all blocks handed out, rounded up to the sizes of bins.
        largest_free: the largest request that needs no new segment.
        fragmented: free, in segments that cannot be given back because another part is in use.
        segments: their number.
        limit: the most that may be reserved; ``None`` for what there is.
        peak: the most that was reserved at once since the start or ``reset_peak``.
        requests: blocks handed out since the start or ``reset_counts``; a number, like those that follow.
        new_segments: how many of them needed new memory.
        retries: how many found room only once unused segments were given back.
    """

    reserved: int
    used: int
    largest_free: int
    fragmented: int
    segments: int
    limit: int | None
    peak: int = 0
    requests: int = 0
    new_segments: int = 0
    retries: int = 0

    @property
    def free(self) -> int:
        """Reserved and not in use."""
        return self.reserved - self.used

    @property
    def reuse(self) -> float:
        """The part of the requests that were served from memory the pool had."""
        return 1 - self.new_segments / self.requests if self.requests else 1.0


@dataclass(frozen=True)
class Segment:
    """A piece of reserved memory.

    Attributes:
        address: where it starts.
        size: in bytes.
        blocks: address, size, and whether it is in use, of each part in order; without gaps.
    """

    address: int
    size: int
    blocks: tuple[tuple[int, int, bool], ...]


class PoolFullError(MemoryError):
    """A request that fits neither what is free nor the limit.

    Attributes:
        asked: bytes.
        stats: of the pool after everything that could be given back was.
    """

    def __init__(self, asked: int, stats: PoolStats, why: str) -> None:
        self.asked, self.stats = asked, stats
        super().__init__(why)


class CachingPool:
    """Hands out blocks of memory, and keeps what comes back. May be called from any thread, ``free`` also from finalizers.

    Args:
        reserve: gives the address, a multiple of ``ALIGNMENT``, of so many new bytes; raises MemoryError.
        release: takes back such a segment: its address and size.
        limit: the most bytes to reserve; ``None`` for as many as ``reserve`` gives.
        max_split: blocks above this size are not split, so that they stay there for large requests; ``None`` splits all.

    Attributes:
        divisions: sizes are rounded up to one of so many steps, a power of two, between two powers of two.
        trim_above: once more than this part of ``limit`` would be reserved, unused segments are given back first.

    Example:
        >>> pool = CachingPool(lambda nbytes: 4096, lambda address, nbytes: None)
        >>> block = pool.allocate(1000)
        >>> pool.stats().used, pool.stats().reserved
        (1024, 2097152)
        >>> pool.free(block)
        >>> pool.trim()
        2097152
    """

    def __init__(
        self,
        reserve: Callable[[int], int],
        release: Callable[[int, int], None],
        *,
        limit: int | None = None,
        max_split: int | None = None,
    ) -> None:
        self._reserve, self._release = reserve, release
        self.limit, self.max_split = limit, max_split
        self.trim_above: float | None = None
        self.divisions = _DIVISIONS
        self._peak = self._requests = self._new_segments = self._retries = 0
        self._used: dict[int, int] = {}  # size of each block handed out, by address
        self._bins: dict[int, list[int]] = {}  # addresses of freed blocks by size; a bin, once made, stays
        self._segments: dict[int, int] = {}
        self._pieces: dict[int, int] = {}  # size of each free piece, by address; no two are neighbours
        self._ends: dict[int, int] = {}  # the same pieces: address by end
        self._by_size: list[tuple[int, int]] = []  # the same pieces, sorted
        self._lock, self._holder = threading.Lock(), 0
        _pools.add(self)

    def allocate(self, nbytes: int) -> int:
        """The address of a block of at least ``nbytes`` bytes.

        Raises:
            PoolFullError: there is no room for it.
        """
        self._requests += 1
        step = 1 << max(nbytes.bit_length() - self._shift, 6)
        size = (nbytes + step - 1) & -step or ALIGNMENT
        blocks = self._bins.get(size)
        if blocks:
            try:
                address = blocks.pop()
            except IndexError:  # another thread was faster
                pass
            else:
                self._used[address] = size
                return address
        return self._allocate_anew(nbytes, size)

    def free(self, address: int) -> None:
        """Take back a block. Nothing here waits for a lock: a finalizer may run in the middle of ``allocate``.

        Raises:
            ValueError: no block that is handed out starts there.
        """
        try:
            size = self._used.pop(address)
        except KeyError:
            raise ValueError(f"no block of this pool in use starts at address {address:#x}") from None
        blocks = self._bins.get(size)
        if blocks is None:
            blocks = self._bins.setdefault(size, [])
        blocks.append(address)

    @property
    def divisions(self) -> int:
        """Steps of sizes between two powers of two; 16 have bins 3 to 6% apart."""
        return 1 << self._shift - 1

    @divisions.setter
    def divisions(self, steps: int) -> None:
        self._shift = steps.bit_length()

    def reset_peak(self) -> None:
        """Let the peak start again from what is reserved now."""
        self._peak = self._reserved()

    def reset_counts(self) -> None:
        """Count requests from now on."""
        self._requests = self._new_segments = self._retries = 0

    def segments(self) -> tuple[Segment, ...]:
        """Every segment and what it is divided into, in address order. Joins free blocks on the way."""
        with self._held():
            self._join()
            used = dict(self._used)
            parts = sorted(
                [(a, s, True) for a, s in used.items()] + [(a, s, False) for a, s in self._pieces.items()]
            )
            starts = sorted(self._segments.items())
        return tuple(
            Segment(start, size, tuple([part for part in parts if start <= part[0] < start + size]))
            for start, size in starts
        )

    def trim(self) -> int:
        """Give back every segment without a block in use; how many bytes that is."""
        with self._held():
            return self._trim()

    def cached(self) -> int:
        """Bytes reserved and not in use."""
        return self._reserved() - sum(tuple(self._used.values()))

    def stats(self) -> PoolStats:
        """What the pool holds now. Joins free blocks on the way."""
        with self._held():
            return self._stats()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, and who has it: finalizers run in the middle of what a thread does here, and must not wait for themselves."""
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

    def _allocate_anew(self, nbytes: int, size: int) -> int:
        if (
            self._holder == threading.get_ident()
        ):  # a finalizer, in the middle of one of our own methods: touch no pieces
            address = self._reserve(size)
            self._segments[address] = self._used[address] = size
            self._new_segments += 1
            return address
        with self._held():
            return self._cut(nbytes, size)

    # -- with the lock held

    def _cut(self, nbytes: int, size: int) -> int:
        piece = self._best_piece(size)
        if piece is None:
            self._join()
            piece = self._best_piece(size)
        if piece is None:
            address = self._segment_for(nbytes, size)
            self._add_piece(address, self._segments[address])
            piece = address
        found = self._remove_piece(piece)
        if found > size and (self.max_split is None or found <= self.max_split):
            self._add_piece(piece + size, found - size)
            found = size
        self._used[piece] = found
        return piece

    def _best_piece(self, size: int) -> int | None:
        """The smallest free piece for a block; none of those kept for larger ones."""
        at = bisect.bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            return None
        found, address = self._by_size[at]
        if self.max_split is not None and found > self.max_split and found - size > size // _SLACK:
            return None
        return address

    def _join(self) -> None:
        """Empty the bins: each block becomes part of the free piece it borders on."""
        for size, blocks in list(self._bins.items()):
            while blocks:
                try:
                    address = blocks.pop()
                except IndexError:
                    break
                self._add_joined(address, size)

    def _add_joined(self, address: int, size: int) -> None:
        end = address + size
        if address not in self._segments and address in self._ends:
            left = self._ends[address]
            size += self._remove_piece(left)
            address = left
        if end not in self._segments and end in self._pieces:
            size += self._remove_piece(end)
        self._add_piece(address, size)

    def _add_piece(self, address: int, size: int) -> None:
        self._pieces[address] = size
        self._ends[address + size] = address
        bisect.insort(self._by_size, (size, address))

    def _remove_piece(self, address: int) -> int:
        size = self._pieces.pop(address)
        del self._ends[address + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, address))]
        return size

    # -- segments

    def _segment_for(self, nbytes: int, size: int) -> int:
        """A new segment, once what is not used was given back if need be."""
        if self.trim_above is not None and self._reserved() + size > self.trim_above * (
            self.limit or math.inf
        ):
            self._trim()
        try:
            return self._new_segment(nbytes, size)
        except PoolFullError:
            if not self._trim():
                raise
            self._retries += 1
        return self._new_segment(nbytes, size)

    def _new_segment(self, nbytes: int, size: int) -> int:
        wanted = next((segment for below, segment in _SEGMENTS if size < below), size + -size % _GRAIN)
        if self.max_split is not None:
            wanted = max(size, min(wanted, self.max_split & -ALIGNMENT))
        why = f"the limit is {self.limit} bytes"
        for segment in (wanted, size):
            if self.limit is not None and segment > self.limit - self._reserved():
                continue
            try:
                address = self._reserve(segment)
            except MemoryError as error:
                why = str(error)
            else:
                self._segments[address] = segment
                self._new_segments += 1
                self._peak = max(self._peak, self._reserved())
                return address
        raise PoolFullError(nbytes, self._stats(), why)

    def _reserved(self) -> int:
        return sum([self._segments[start] for start in list(self._segments)])

    def _trim(self) -> int:
        unused = self._unused()
        for start, size in unused:
            self._remove_piece(start)
            del self._segments[start]
            self._release(start, size)
        return sum(size for _, size in unused)

    def _unused(self) -> list[tuple[int, int]]:
        """Segments without a block in use: address and size."""
        self._join()
        starts = list(self._segments)  # a copy: a finalizer may add one
        return [
            (start, self._segments[start])
            for start in starts
            if self._segments[start] == self._pieces.get(start)
        ]

    def _stats(self) -> PoolStats:
        unused = sum(size for _, size in self._unused())
        return PoolStats(
            reserved=self._reserved(),
            used=sum(tuple(self._used.values())),
            largest_free=self._by_size[-1][0] if self._by_size else 0,
            fragmented=sum(size for size, _ in self._by_size) - unused,
            segments=len(self._segments),
            limit=self.limit,
            peak=self._peak,
            requests=self._requests,
            new_segments=self._new_segments,
            retries=self._retries,
        )


# A forked child has no thread that could finish what another was doing here: no fork in the middle of it.

_pools: weakref.WeakSet[CachingPool] = weakref.WeakSet()
_held: list[CachingPool] = []


def _before_fork() -> None:
    for pool in list(_pools):
        if pool._holder != threading.get_ident():
            pool._lock.acquire()
            _held.append(pool)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
