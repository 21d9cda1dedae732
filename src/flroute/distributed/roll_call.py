"""Who has come how far: each rank of a group says in the group's store which collective it enters.

A ``set`` of a ``TCPStore`` is one message that nobody waits for (about a microsecond). Others read it only where they have a
question: before the first collective of a kind, and after one that failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from flroute.errors import CollectiveError
from flroute.torch_compat import is_file_store, with_prefix

_REMEMBERED = 64
"""Entries of each rank that are kept: a rank may issue that many collectives before the slowest has read its first."""

_PATIENCE = 2.0
"""Seconds that a failed rank waits for what the others have to say."""

_LONGEST_NAP = 0.02


@dataclass(frozen=True)
class Entry:
    """One collective as a rank enters it.

    Attributes:
        number: of all collectives of the group, from 1.
        kind: what must be the same on every rank.
        title: the same for people: ``allreduce_ of float32 [4], SUM``.
    """

    number: int
    kind: str
    title: str

    def __str__(self) -> str:
        return f"{self.title} (#{self.number})"

    def dump(self) -> str:
        """As text for the store."""
        return f"{self.number}\n{self.kind}\n{self.title}"

    @classmethod
    def load(cls, text: bytes) -> Entry:
        """From the store."""
        number, kind, title = text.decode().split("\n")
        return cls(int(number), kind, title)


class RollCall:
    """What the ranks of one group say, and what this one knows of it.

    Args:
        group: a process group of ``torch.distributed``.
    """

    def __init__(self, group: Any) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.name = group.group_name
        self._ranks = dist.get_process_group_ranks(group)
        self._number = 0
        self._lock = threading.Lock()
        store = group.get_group_store()
        # a connection of its own: the user's may be waiting for something; a file would keep all that was ever said
        self._store = None if is_file_store(store) else with_prefix("flroute/", store)

    @property
    def is_held(self) -> bool:
        """Whether ranks can hear of each other."""
        return self._store is not None and self.size > 1

    def enter(self, kind: str, title: str) -> Entry:
        """Say that this rank enters its next collective."""
        with self._lock:
            self._number += 1
            entry = Entry(self._number, kind, title)
            if self._store is not None and self.size > 1:
                text = entry.dump()
                self._store.set(f"{self.rank}/{entry.number % _REMEMBERED}", text)
                self._store.set(f"{self.rank}", text)
        return entry

    def agree(self, entry: Entry, peers: Iterable[int], timeout: float) -> None:
        """Wait until ``peers`` have entered the same collective.

        Raises:
            CollectiveError: one has entered another, or has not come within ``timeout`` seconds.
        """
        deadline, missing = time.monotonic() + timeout, set(peers)
        try:
            for _ in _naps(deadline):
                for peer in sorted(missing):
                    theirs = self._entry(peer, entry.number)
                    if theirs is None:
                        continue
                    if theirs.number == entry.number and theirs.kind != entry.kind:
                        raise CollectiveError(self._mismatch(entry, peer, theirs))
                    missing.discard(peer)
                if not missing:
                    return
        except dist.DistError as error:
            raise CollectiveError(f"{self._about(entry)} cannot begin: {self._lost_store(error)}") from error
        why = self._absent(missing, entry)
        raise CollectiveError(f"{self._about(entry)} timed out after {timeout:g} s: {why}")

    def explain(self, entry: Entry, error: Exception) -> CollectiveError:
        """What became of a collective that the transport gave up: who is missing, or who does something else."""
        head, said = f"{self._about(entry)} failed", _first_line(error)
        if not self.is_held:
            return CollectiveError(f"{head}: {said}")
        try:
            why = self._diagnosis(entry)
        except dist.DistError as lost:
            why = self._lost_store(lost)
        return CollectiveError(f"{head}: {why} [{said}]")

    def _diagnosis(self, entry: Entry) -> str:
        self._store.set(f"{self.rank}/failed", str(entry.number))  # type: ignore[union-attr]
        others = {peer for peer in range(self.size) if peer != self.rank}
        behind, silent = set(others), set[int]()
        for _ in _naps(time.monotonic() + _PATIENCE):
            for peer in sorted(others):
                theirs, last = self._entry(peer, entry.number), self._latest(peer)
                if theirs is not None and theirs.number == entry.number and theirs.kind != entry.kind:
                    return self._mismatch(entry, peer, theirs, about=False)
                if theirs is None or last is None:
                    continue
                behind.discard(peer)
                if last.number > entry.number or self._failed(peer) >= entry.number:
                    silent.discard(peer)
                    others.discard(peer)
                else:
                    silent.add(peer)
            if not others:
                return "every rank entered it, and each lost its connection or gave up waiting"
            others = {peer for peer in others if peer in behind or peer in silent}
        if behind:
            return self._absent(behind, entry)
        return (
            f"{self._ranks_in_words(silent)} entered it and {_has(silent)} not been heard of since: it ended or hangs there; "
            f"see what it printed last"
        )

    # -- in words

    @property
    def here(self) -> str:
        """Where this is: ``on rank 1 of process group '0'``."""
        return f"on rank {self._ranks[self.rank]} of process group {self.name!r}"

    def _about(self, entry: Entry) -> str:
        return f"{entry} {self.here}"

    def _absent(self, peers: set[int], entry: Entry) -> str:
        last = []
        for peer in sorted(peers):
            latest = self._latest_or_none(peer)
            said = "none in this group" if latest is None else str(latest)
            last.append(f"its last was {said}" if len(peers) == 1 else f"rank {self._ranks[peer]}: {said}")
        return (
            f"{self._ranks_in_words(peers)} {_has(peers)} not entered it ({'; '.join(last)}). It ended, hangs, or takes another "
            f"path through the program: see what it printed last"
        )

    def _mismatch(self, entry: Entry, peer: int, theirs: Entry, *, about: bool = True) -> str:
        head = f"{self._about(entry)}: " if about else ""
        return (
            f"{head}the ranks do not agree: rank {self._ranks[self.rank]} calls {entry.title}, rank {self._ranks[peer]} calls "
            f"{theirs.title}. Every rank of a group must call the same collectives in the same order, with the same dtype and size"
        )

    def _lost_store(self, error: Exception) -> str:
        return (
            f"the store of the group does not answer ({_first_line(error)}): the process that holds it, rank 0 unless torchrun "
            f"does, is probably gone"
        )

    def _ranks_in_words(self, peers: set[int]) -> str:
        names = ", ".join(str(self._ranks[peer]) for peer in sorted(peers))
        return f"rank {names}" if len(peers) == 1 else f"ranks {names}"

    # -- the store

    def _read(self, key: str) -> bytes | None:
        store: Any = self._store
        return store.get(key) if store.check([key]) else None

    def _entry(self, peer: int, number: int) -> Entry | None:
        """What a peer entered as its collective of this number; a later entry if that one is forgotten; ``None`` if not yet."""
        text = self._read(f"{peer}/{number % _REMEMBERED}")
        found = None if text is None else Entry.load(text)
        return found if found is not None and found.number >= number else None

    def _latest(self, peer: int) -> Entry | None:
        text = self._read(f"{peer}")
        return None if text is None else Entry.load(text)

    def _latest_or_none(self, peer: int) -> Entry | None:
        try:
            return self._latest(peer)
        except dist.DistError:
            return None

    def _failed(self, peer: int) -> int:
        text = self._read(f"{peer}/failed")
        return 0 if text is None else int(text)


def _naps(deadline: float) -> Iterator[None]:
    """Yield at once, and again after ever longer naps until the deadline."""
    nap = 0.0005
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _has(peers: set[int]) -> str:
    return "has" if len(peers) == 1 else "have"
