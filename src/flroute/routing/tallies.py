"""Decisions being counted: a tally for each, in books that do not grow without bound."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from flroute.routing.caller import Caller
from flroute.vocabulary import Decision, Phase, Reason, Rejection, Route

MAX_SIGNATURES = 512
"""Decisions of one op that are told apart. A model with fixed shapes has a handful; one whose sequence lengths differ on
every call would fill the memory with them."""

Shapes = tuple[tuple[int, ...], ...]


class Choice(NamedTuple):
    """What was decided, and why."""

    op: str
    route: Route
    kernel: str | None
    device: str
    reason: Reason
    detail: str = ""
    rejected: tuple[Rejection, ...] = ()


class Key(NamedTuple):
    """What makes a decision another one.

    Attributes:
        choice: what was decided.
        dtypes: of the tensor arguments.
        shapes: likewise.
        place: module and phase, in a session that tells calls apart by them.
        rest: stands for all decisions of the op that found no room in a book.
    """

    choice: Choice
    dtypes: tuple[str, ...] = ()
    shapes: Shapes = ()
    place: tuple[str | None, Phase] | None = None
    rest: bool = False

    def as_rest(self) -> Key:
        """The key under which this decision is counted where there is no room for it."""
        return Key(self.choice._replace(detail="", rejected=()), rest=True)


def dtype_names(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """``("float32", "int64")``."""
    return tuple([str(tensor.dtype).removeprefix("torch.") for tensor in tensors])


def shapes_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shapes:
    """Shapes of all tensors among the arguments, those in lists included, in order; that of a nested tensor is empty."""
    found: list[tuple[int, ...]] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(() if value.is_nested else value.shape)
        elif isinstance(value, list | tuple):
            found += [() if t.is_nested else t.shape for t in value if isinstance(t, torch.Tensor)]
    return tuple(found)


_numbers = itertools.count()


class Tally:
    """A decision being counted. ``tick()`` counts a call: atomic, and cheaper than an attribute update under a lock."""

    __slots__ = (
        "_count", "bytes_to_device", "bytes_to_host", "caller", "choice", "key", "more_calls", "number", "seconds", "tick",
    )  # fmt: skip

    def __init__(self, key: Key, choice: Choice, caller: Caller) -> None:
        self.key, self.choice, self.caller = key, choice, caller
        self.number = next(_numbers)
        """In the order in which decisions are first taken, in all sessions."""
        self._count = itertools.count()
        self.tick: Callable[[], int] = self._count.__next__
        self.more_calls = 0
        self.seconds: float | None = None
        self.bytes_to_host = self.bytes_to_device = 0

    @property
    def calls(self) -> int:
        """How often ``tick`` was called; ``repr`` shows an itertools.count without advancing it."""
        return int(repr(self._count)[6:-1]) + self.more_calls

    def decision(self) -> Decision:
        """The decision as it stands now."""
        return Decision(
            *self.choice, self.key.dtypes, tuple(map(tuple, self.key.shapes)), self.calls, self.seconds,
            self.bytes_to_host, self.bytes_to_device, *self.caller, self.key.rest,
        )  # fmt: skip

    def add(self, other: Tally) -> None:
        """Count what ``other`` counted, and go by its first call if that was earlier."""
        if other.number < self.number:
            self.number, self.choice, self.caller = other.number, other.choice, other.caller
        self.more_calls += other.calls
        self.bytes_to_host += other.bytes_to_host
        self.bytes_to_device += other.bytes_to_device
        if other.seconds is not None:
            self.seconds = (self.seconds or 0.0) + other.seconds


def timed(function: Callable[..., Any], tally: Tally) -> Callable[..., Any]:
    """``function``, its time added to a tally when it returns."""
    clock = time.perf_counter

    def run(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        result = function(*args, **kwargs)
        tally.seconds = (tally.seconds or 0.0) + clock() - start
        return result

    return run


class Book:
    """Tallies by key: of each op ``MAX_SIGNATURES``, and one for the rest of each choice."""

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}
        self._of_op: Counter[str] = Counter()

    def find(self, key: Key) -> Tally | None:
        """The tally that counts this decision: its own, or that of the rest where there is no room; ``None`` for a new one."""
        found = self._tallies.get(key)
        if found is None and self._of_op[key.choice.op] >= MAX_SIGNATURES:
            found = self._tallies.get(key.as_rest())
        return found

    def open(self, key: Key, choice: Choice, caller: Caller) -> Tally:
        """The same; a new decision gets a tally of its own while there is room."""
        found = self.find(key)
        if found is None:
            if self._of_op[key.choice.op] >= MAX_SIGNATURES:
                key = key.as_rest()
            found = self._tallies[key] = Tally(key, choice, caller)
            self._of_op[key.choice.op] += not key.rest
        return found

    def add(self, tallies: Iterable[Tally]) -> None:
        """Count what they counted."""
        for tally in tallies:
            self.open(tally.key, tally.choice, tally.caller).add(tally)

    def tallies(self) -> list[Tally]:
        """All of them."""
        return list(self._tallies.values())


def decisions_of(tallies: Iterable[Tally]) -> list[Decision]:
    """The decisions that served at least one call, in the order first taken; those with one key added up."""
    total = Book()
    total.add(tallies)
    in_order = sorted(total.tallies(), key=lambda tally: tally.number)
    return [decision for tally in in_order if (decision := tally.decision()).calls]
