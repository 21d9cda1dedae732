"""What a shadow run found: a row for each op in each module and phase, and the calls that were beyond their tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flroute.drift.measures import Difference
from flroute.drift.tolerances import Tolerance
from flroute.vocabulary import Phase

MAX_CALLS = 100_000
"""Calls that are kept one by one; rows add up all of them."""


class Place(NamedTuple):
    """Where in the program a call was made.

    Attributes:
        step: number of the model's call that was the last before it, from 0; -1 before the first.
        module: path of the module under way, or that made the graph of a backward pass.
        phase: forward, backward or optimizer.
    """

    step: int
    module: str | None
    phase: Phase


class Call(NamedTuple):
    """One call of an op on the device.

    Attributes:
        number: of the call, from 0.
        op: ``aten::mm``.
        place: where it was made.
        excess: how many times its tolerance the result is away from the exact one for the same inputs.
        local: largest absolute difference from that.
        accumulated: largest absolute difference from the reference's value, which is carried along.
        scale: largest magnitude in the reference's value.
    """

    number: int
    op: str
    place: Place
    excess: float
    local: float
    accumulated: float
    scale: float


@dataclass
class ShadowRow:
    """All calls of one op in one module and phase.

    Attributes:
        op: ``aten::mm``.
        module: path of the module; ``None`` outside of modules.
        phase: forward, backward or optimizer.
        calls: how many there were.
        excess: largest of theirs: up to 1 is right.
        local: how far calls are from the exact result for the same inputs: ``max_abs`` is the largest of all, the other
            measures are of a call whose own is at least half of that.
        accumulated: the same, from the reference's values, which are carried along.
        tolerance: what the worst call was allowed.
        first: number of the first call.
        first_wrong: number of the first call that was beyond its tolerance.
        unjudged: why there is nothing to hold it against, if so.
    """

    op: str
    module: str | None
    phase: Phase
    calls: int = 0
    excess: float = 0.0
    local: Difference = field(default_factory=Difference)
    accumulated: Difference = field(default_factory=Difference)
    tolerance: Tolerance | None = None
    first: int = 0
    first_wrong: int | None = None
    unjudged: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether a call was beyond its tolerance."""
        return self.first_wrong is not None


@dataclass(frozen=True)
class Branch:
    """Where a value that the program looks at would be another one with the reference's numbers.

    Attributes:
        op: that told the program: ``aten::_local_scalar_dense``, ``aten::nonzero``.
        place: where it was asked.
        device: what the device said, and the program went on with.
        reference: what the reference would have said.
    """

    op: str
    place: Place
    device: str
    reference: str


@dataclass(frozen=True)
class Violation:
    """A rule beside the values that a call broke.

    Attributes:
        rule: ``aliasing``, ``strides``, ``dtype``, ``shape``, ``version``, ``in-place`` or ``determinism``.
        op: that broke it.
        place: where.
        detail: what was found, and what should be.
    """

    rule: str
    op: str
    place: Place
    detail: str


@dataclass(frozen=True)
class NonFinite:
    """The first infinity that came out of an op with finite inputs, or the first NaN out of one whose inputs had none.

    Attributes:
        op: that made it.
        place: where.
        in_reference: whether the exact result has it, too.
        is_nan: whether it is a NaN.
        script: that runs the op again on the same inputs, if they were saved.
    """

    op: str
    place: Place
    in_reference: bool
    is_nan: bool
    script: str | None = None


class Ledger:
    """Takes up what is found, call by call."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str | None, Phase], ShadowRow] = {}
        self.calls: list[Call] = []
        self.count = 0
        self.branches: list[Branch] = []
        self.violations: list[Violation] = []
        self.nonfinite: list[NonFinite] = []  # the first of each kind
        self.first_wrong: Call | None = None
        self.drawn: set[str] = set()
        self.elsewhere = 0  # calls of modules that other threads made
        self.scripts: dict[str, str] = {}

    def row(self, op: str, place: Place) -> ShadowRow:
        """The row of an op at a place."""
        key = (op, place.module, place.phase)
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = ShadowRow(op, place.module, place.phase, first=self.count)
        return found

    def knows_of(self, found: NonFinite) -> bool:
        """Whether there was one of this kind before: infinity or NaN, in the reference or not."""
        kind = (found.is_nan, found.in_reference)
        return any((known.is_nan, known.in_reference) == kind for known in self.nonfinite)

    def note(self, call: Call, row: ShadowRow) -> None:
        """Add a call to its row."""
        self.count += 1
        row.calls += 1
        if len(self.calls) < MAX_CALLS:
            self.calls.append(call)
        if call.excess > 1:
            if row.first_wrong is None:
                row.first_wrong = call.number
            self.first_wrong = self.first_wrong or call

    def violate(self, violations: Sequence[Violation]) -> None:
        """Take up broken rules, each once for an op and module."""
        if not violations:
            return
        known = {(v.rule, v.op, v.place.module) for v in self.violations}
        self.violations += [v for v in violations if (v.rule, v.op, v.place.module) not in known]
