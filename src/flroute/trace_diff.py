"""What became of each op between two runs: new ones, gone ones, and those that took another route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flroute.vocabulary import Decision, Route

Call = tuple[str, tuple[str, ...]]
"""An op and the dtypes of its tensors: what is compared between runs."""


@dataclass(frozen=True)
class Change:
    """One op with one signature of dtypes, in two runs.

    Attributes:
        op: ``aten::mm``.
        dtypes: of its tensors.
        before: how its calls were served, ``native reference/numpy:mm``; empty if there were none.
        after: likewise.
    """

    op: str
    dtypes: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``new``, ``gone`` or ``changed``."""
        return "new" if not self.before else "gone" if not self.after else "changed"

    @property
    def is_new_fallback(self) -> bool:
        """Whether the host does work now that it did not do before."""
        return any(_is_fallback(way) for way in self.after) and not any(map(_is_fallback, self.before))


def compare(before: Iterable[Decision], after: Iterable[Decision]) -> list[Change]:
    """The ops that were served in another way, those with a new fallback first, then by name.

    Example:
        >>> from flroute import Decision, Reason, Route
        >>> then = Decision("aten::mm", Route.NATIVE, "acme/asm:mm", "fl:0", Reason.MATCHED, calls=3)
        >>> now = Decision("aten::mm", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, calls=3)
        >>> [(c.op, c.kind, c.is_new_fallback) for c in compare([then], [now])]
        [('aten::mm', 'changed', True)]
        >>> compare([then], [then])
        []
    """
    ways_before, ways_after = _ways(before), _ways(after)
    changes = [
        Change(*call, tuple(sorted(ways_before.get(call, ()))), tuple(sorted(ways_after.get(call, ()))))
        for call in ways_before.keys() | ways_after.keys()
    ]
    changed = [change for change in changes if change.before != change.after]
    return sorted(changed, key=lambda c: (not c.is_new_fallback, c.op, c.dtypes))


def _ways(decisions: Iterable[Decision]) -> dict[Call, set[str]]:
    ways: dict[Call, set[str]] = {}
    for d in decisions:
        ways.setdefault((d.op, d.dtypes), set()).add(_way(d))
    return ways


def _way(d: Decision) -> str:
    return f"{d.route} {d.kernel or d.reason}"


def _is_fallback(way: str) -> bool:
    return way.startswith(f"{Route.FALLBACK} ")
