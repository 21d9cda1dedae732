"""Asking a kernel's ``when=``: what it raises is told as the vendor's, and one that is slow is named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from flroute.errors import VendorError
from flroute.kernel_rules import definition_of
from flroute.routing.schema import OpFacts

Predicate = Callable[..., bool | str]

SLOW = 1e-3
"""Seconds that a predicate may take. It reads dtypes, shapes and strides, which is a matter of microseconds."""

_named: set[Predicate] = set()


def ask(
    when: Predicate, facts: OpFacts, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool | str:
    """What the predicate of kernel ``name`` says about a call.

    Raises:
        VendorError: it raised; names the kernel and where the predicate is defined.
    """
    try:
        return when(*args, **kwargs)
    except Exception as error:  # a vendor's predicate may raise anything; it is named, and the cause kept
        raise VendorError(
            name, "when", definition_of(when),
            f"the predicate raised {type(error).__name__} for {facts.name}: {error}; a predicate must answer",
        ) from error  # fmt: skip


def ask_and_time(
    when: Predicate, facts: OpFacts, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool | str:
    """The same, off the hot path: a predicate that is slow twice in a row is named, once, in a warning.

    The first time, it may have imported something, or the machine was busy; what a predicate says does not change.
    """
    answer, seconds = _timed(when, facts, name, args, kwargs)
    if seconds > SLOW and when not in _named:
        _, again = _timed(when, facts, name, args, kwargs)
        if again > SLOW:
            _named.add(when)
            logging.getLogger("flroute").warning(
                "the predicate of kernel %s (%s) took %.1f ms for %s, and %.1f ms when asked again; every call that may take "
                "the kernel waits for it. A predicate reads dtypes, shapes and strides: compute the rest once, outside",
                name, definition_of(when), seconds * 1e3, facts.name, again * 1e3,
            )  # fmt: skip
    return answer


def _timed(
    when: Predicate, facts: OpFacts, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool | str, float]:
    start = time.perf_counter()
    answer = ask(when, facts, name, args, kwargs)
    return answer, time.perf_counter() - start
