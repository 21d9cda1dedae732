"""What flroute keeps of each process group: the roll call, and the queue of collectives that wait for the others' answers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.constants import default_pg_timeout

from flroute.device.table import DEVICE_TYPE
from flroute.distributed.collectives import Ask, Collective
from flroute.distributed.roll_call import Entry, RollCall
from flroute.distributed.works import Flight, Start
from flroute.errors import CollectiveError
from flroute.torch_compat import transport_of

Tasks = SimpleQueue[Callable[[], None] | None]

_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()
_lock = threading.Lock()

_MAX_STEPS = 4096
"""What a rank remembers of its path; with more, for sizes that differ on every call, it asks anew."""


class Group:
    """One process group.

    Args:
        process_group: PyTorch's own.

    Raises:
        CollectiveError: it has no backend for the device.
    """

    def __init__(self, process_group: Any) -> None:
        self.size: int = process_group.size()
        try:
            self.transport = transport_of(process_group, torch.device(DEVICE_TYPE))
        except RuntimeError as error:
            raise CollectiveError(
                f"the process group {process_group.group_name!r} has no backend for {DEVICE_TYPE!r}: make it with "
                f"init_process_group('flroute') or init_process_group('cpu:gloo,{DEVICE_TYPE}:flroute')"
            ) from error
        options = self.transport.options  # a backend that is not gloo's may have none
        timeout = default_pg_timeout if options is None else options._timeout
        self.timeout: float = timeout.total_seconds()
        self.roll_call = RollCall(process_group)
        self._agreed: set[tuple[str, str]] = set()
        self._latest = ""
        self._waiting = 0
        self._waiting_lock = threading.Lock()

    @cached_property
    def _queue(self) -> Tasks:
        """Worked off by a thread of its own, which must not keep a process alive that has nothing else to do."""
        tasks: Tasks = SimpleQueue()
        threading.Thread(target=_work_off, args=(tasks,), name="flroute-collectives", daemon=True).start()
        weakref.finalize(self, tasks.put, None)
        return tasks

    def peers_to_ask(self, collective: Collective, root: int, kind: str, *, always: bool) -> list[int]:
        """Whom to ask before this rank begins."""
        if not self.roll_call.is_held or collective.ask is Ask.NOBODY:
            return []
        # A rank that leaves the others' path comes to something that it has not done before at this place, even if it has
        # done it elsewhere: what counts as seen is a kind after another.
        step, self._latest = (self._latest, kind), kind
        if step in self._agreed and not always:
            return []
        if len(self._agreed) >= _MAX_STEPS:
            self._agreed.clear()
        self._agreed.add(step)
        here = self.roll_call.rank
        if collective.ask is Ask.EVERYONE or (collective.ask is Ask.AS_THE_ROOT and here == root):
            return [rank for rank in range(self.size) if rank != here]
        return [root] if collective.ask is Ask.THE_ROOT and here != root else []

    def begin(self, entry: Entry, peers: list[int], start: Start, flight: Flight, timeout: float) -> None:
        """Start a collective once ``peers`` have agreed, after all that began before it; does not wait for that."""
        with self._waiting_lock:
            at_once = not peers and not self._waiting
            self._waiting += not at_once
        if at_once:
            flight.take_off(start)
        else:
            self._queue.put(partial(self._begin_agreed, entry, peers, start, flight, timeout))

    def _begin_agreed(
        self, entry: Entry, peers: list[int], start: Start, flight: Flight, timeout: float
    ) -> None:
        try:
            self.roll_call.agree(entry, peers, timeout)
        except Exception as error:  # noqa: BLE001 -- it would end the thread, and all that is behind it would wait for ever
            flight.land(error)
        else:
            flight.take_off(start)
        finally:
            with self._waiting_lock:
                self._waiting -= 1


def _work_off(tasks: Tasks) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds the group, whose end ends this


def group_of(process_group: Any) -> Group:
    """What is kept of a process group, made at its first collective."""
    with _lock:
        found = _groups.get(process_group)
        if found is None:
            found = _groups[process_group] = Group(process_group)
        return found
