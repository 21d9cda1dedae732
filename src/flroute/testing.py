"""Helpers for tests of models and kernels: what was decided, and that nothing fell back unseen.

The pytest plugin (``flroute.plugins.pytest_plugin``) does the same for whole test suites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase

from flroute.report import added_up
from flroute.routers import capture
from flroute.routing.capture import Capture
from flroute.vocabulary import Decision

__all__ = ["Capture", "assert_no_fallback", "capture_decisions", "describe_fallback", "unexpected_fallbacks"]


def capture_decisions(*, watch_kernels: bool = True) -> AbstractContextManager[Capture]:
    """Collect every decision taken while open: in any thread, inside sessions and outside, forward and backward.

    Args:
        watch_kernels: also find what kernels have PyTorch compute on the host without saying so; they are slower for it.

    Returns:
        A context manager that gives a ``Capture`` with ``decisions`` and ``fallbacks``. Both can be read inside the
        block, up to there, and after it.

    Example:
        >>> import torch
        >>> from flroute.testing import capture_decisions
        >>> with capture_decisions() as captured:
        ...     y = torch.ones(2, device="fl").add(1)
        >>> [(d.op, str(d.route)) for d in captured.decisions if d.op == "aten::add.Tensor"]
        [('aten::add.Tensor', 'native')]
    """
    return capture(watch_kernels=watch_kernels)


@contextmanager
def assert_no_fallback(allow: Iterable[str] = ()) -> Iterator[Capture]:
    """Fail if the host computed an op for the device while open.

    Args:
        allow: ops that may fall back: overloads (``"aten::add.Tensor"``), ops (``"aten::add"``: every overload), or globs
            (``"aten::linalg_*"``).

    Raises:
        AssertionError: at the end of the block, with each fallback: op, reason, dtypes, shapes, first call and remedy.

    Example:
        >>> import torch
        >>> from flroute.testing import assert_no_fallback
        >>> with assert_no_fallback():
        ...     y = torch.ones(2, device="fl").exp()
    """
    with capture(watch_kernels=True) as captured:
        yield captured
    found = unexpected_fallbacks(captured.fallbacks, allow)
    if found:
        raise AssertionError("\n".join(["the host computed for the device:", *map(describe_fallback, found)]))


def unexpected_fallbacks(fallbacks: Iterable[Decision], allow: Iterable[str]) -> list[Decision]:
    """Those that no pattern of ``allow`` names; patterns are as for ``assert_no_fallback``.

    What differs in shapes only is added up: it is one fallback to whoever has to cure it.
    """
    patterns = tuple(allow)
    found = [decision for decision in fallbacks if not any(_names(p, decision.op) for p in patterns)]
    return added_up(found, lambda d: (d.op, d.kernel, d.device, d.reason, d.detail, d.dtypes))


def _names(pattern: str, op: str) -> bool:
    return pattern == op.partition(".")[0] or fnmatchcase(op, pattern)


def describe_fallback(decision: Decision) -> str:
    """One fallback in words: op, device, reason, dtypes, shapes, first call, and what to do."""
    shapes = ", ".join(
        f"{dtype} {list(shape)}" for dtype, shape in zip(decision.dtypes, decision.shapes, strict=True)
    )
    times = "once" if decision.calls == 1 else f"{decision.calls:,} times"
    return (
        f"  {decision.op} on {decision.device}, {times}: {decision.reason}: {decision.detail}\n"
        f"    with ({shapes}), first from {decision.call_site or 'unknown'}\n"
        f'    Register a kernel for it (flroute.vendor.kernel), or allow it: allow=["{decision.op}"]'
    )
