"""The smallest set of things that make something hold, found with few questions: delta debugging as group testing.

Zeller's ddmin halves what it is given and asks about both halves, and about all but each. Where one thing is to be found, as
nearly always, halving by prefixes asks half as often: the shortest prefix for which it holds ends in a thing that is needed;
with that thing always present, the shortest prefix is looked for again, until what was found is enough by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import TypeVar

T = TypeVar("T")


def smallest(things: Sequence[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """A set of things for which it holds, and for none that lacks one of them.

    Args:
        things: in some order; it holds for all of them and not for none, and the caller has made sure of both.
        holds: whether it holds for some of them. Where more things never make it fail, the answer is exact; otherwise it holds
            for the answer all the same, for it was asked.

    Example:
        >>> smallest(range(100), lambda some: {7, 42} <= set(some))
        [7, 42]
    """
    found: list[T] = []
    left = list(things)
    while True:
        needed = _shortest(left, found, holds) - 1
        found.append(left[needed])
        left = left[:needed]
        if not left or holds(found):  # without any left, it was asked with the last prefix
            return _without_idle(found, holds)[::-1]


def _shortest(left: list[T], found: list[T], holds: Callable[[list[T]], bool]) -> int:
    """How many of those left make it hold, together with those found."""
    fails, serves = 0, len(left)
    while serves - fails > 1:
        middle = (fails + serves) // 2
        if holds([*found, *left[:middle]]):
            serves = middle
        else:
            fails = middle
    return serves


def _without_idle(found: list[T], holds: Callable[[list[T]], bool]) -> list[T]:
    """Those found, less what turns out not to be needed; it was asked already without the last."""
    for thing in found[:-1]:
        rest = [other for other in found if other is not thing]
        if holds(rest):
            found = rest
    return found


def fewest_questions(things: int) -> int:
    """How often ``smallest`` asks at least, to find one thing.

    Example:
        >>> fewest_questions(32), fewest_questions(1)
        (5, 0)
    """
    return max(things, 1).bit_length() - 1


def most_questions(things: int, needed: int) -> int:
    """How often ``smallest`` asks at most, when so many of the things are needed.

    Example:
        >>> most_questions(32, 1), most_questions(32, 2)
        (6, 13)
    """
    return needed * (ceil(log2(max(things, 1))) + 1) + needed - 1
