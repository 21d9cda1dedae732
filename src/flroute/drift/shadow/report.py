"""What a shadow run found, for terminals, notebooks and pages, and as data."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flroute.drift.reference import Reference
from flroute.drift.shadow.ledger import Branch, Call, Ledger, NonFinite, ShadowRow, Violation
from flroute.report import counted
from flroute.tables import Grid, TableAndText, page

SCHEMA_VERSION = 1
_SHOWN = 40
"""Rows of the table, those with the largest excess first."""


class ShadowReport(TableAndText):
    """What ``flroute.shadow`` yields. It fills while the block runs, and stays.

    Args:
        ledger: what the observer has found.
        reference: what the values were held against.

    Example:
        >>> import flroute, torch
        >>> model = torch.nn.Linear(2, 2).to("fl")
        >>> with flroute.shadow(model) as s:
        ...     y = model(torch.ones(1, 2, device="fl"))
        >>> s.first_divergence, s.worst.op, s.worst.tolerance.source
        (None, 'aten::addmm', 'flroute: product')
    """

    def __init__(self, ledger: Ledger, reference: Reference) -> None:
        self._ledger, self._reference = ledger, reference

    @property
    def reference(self) -> str:
        """What the values were held against: ``host-float64``."""
        return self._reference.name

    @property
    def reference_seconds(self) -> float:
        """How long the reference has computed."""
        return self._reference.seconds

    @property
    def calls(self) -> list[Call]:
        """The calls in the order in which they were made, the first hundred thousand of them."""
        return list(self._ledger.calls)

    def rows(self) -> list[ShadowRow]:
        """For each op in each module and phase what its calls add up to, in the order first met."""
        return list(self._ledger.rows.values())

    @property
    def wrong(self) -> list[ShadowRow]:
        """Rows with a call beyond its tolerance, the one that was first wrong first."""
        return sorted((row for row in self.rows() if row.is_wrong), key=lambda row: row.first_wrong or 0)

    @property
    def first_divergence(self) -> Call | None:
        """The first call whose result is wrong for the inputs it was given."""
        return self._ledger.first_wrong

    @property
    def worst(self) -> ShadowRow | None:
        """The row whose worst call is most times its tolerance away."""
        return max((row for row in self.rows() if row.local.numel), key=lambda row: row.excess, default=None)

    @property
    def violations(self) -> list[Violation]:
        """Rules beside the values that calls have broken."""
        return list(self._ledger.violations)

    @property
    def branches(self) -> list[Branch]:
        """Where the program would have been told something else by the reference."""
        return list(self._ledger.branches)

    @property
    def nonfinite(self) -> list[NonFinite]:
        """Where infinities and NaNs began: the first of each, in the reference or not; what the reference has not comes first."""
        return sorted(self._ledger.nonfinite, key=lambda found: (found.in_reference, not found.is_nan))

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The one of these that tells most."""
        return next(iter(self.nonfinite), None)

    @property
    def drawn(self) -> list[str]:
        """Random ops: the reference took what the device had drawn, so that both go on from the same numbers."""
        return sorted(self._ledger.drawn)

    @property
    def unjudged(self) -> dict[str, str]:
        """Ops that the reference cannot compute, and why."""
        return {row.op: row.unjudged for row in self.rows() if row.unjudged is not None}

    @property
    def elsewhere(self) -> int:
        """How many calls of modules other threads made, as DataParallel does: these were not looked at."""
        return self._ledger.elsewhere

    @property
    def scripts(self) -> dict[str, str]:
        """For each op that was beyond its tolerance the script that runs its first such call again, where these are saved."""
        return dict(self._ledger.scripts)

    @property
    def ok(self) -> bool:
        """Whether every call was within its tolerance and broke no rule."""
        return self.first_divergence is None and not self.violations

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single calls, in types that JSON has: infinities are ``None``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "reference": self.reference,
            "ok": self.ok,
            "calls": self._ledger.count,
            "first_divergence": _plain(self.first_divergence and _call_dict(self.first_divergence)),
            "rows": [_plain(asdict(row)) for row in self.rows()],
            "violations": [_plain(asdict(v)) for v in self.violations],
            "branches": [_plain(asdict(b)) for b in self.branches],
            "nonfinite": [_plain(asdict(found)) for found in self.nonfinite],
            "drawn": self.drawn,
            "elsewhere": self.elsewhere,
            "scripts": self.scripts,
        }

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write ``to_dict()`` to ``path`` and return it; missing directories are made."""
        return _written(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as a page that needs no other file, and return ``path``; missing directories are made."""
        return _written(path, page(f"flroute: shadow of {self.reference}", self._repr_html_()))

    def summary(self) -> list[str]:
        """The report in a few lines of text."""
        lines = [f"{self._ledger.count:,} calls against {self.reference}"]
        first = self.first_divergence
        if first is None:
            lines.append("every call is within its tolerance")
        else:
            lines.append(f"first wrong: {first.op}{_at(first.place)}, {_times(first.excess)} its tolerance")
        worst = self.worst
        if worst is not None and worst.is_wrong:
            lines.append(f"worst: {worst.op}{_at(worst)}, {_times(worst.excess)} its tolerance")
        lines += [f"broken rule, {v.rule}: {v.op}{_at(v.place)}: {v.detail}" for v in self.violations]
        lines += [
            f"another branch: {b.op}{_at(b.place)} says {b.device} on the device, {b.reference} in the reference"
            for b in self.branches
        ]
        for found in self.nonfinite:
            what = "NaN" if found.is_nan else "infinity"
            whose = "as in the reference" if found.in_reference else "the reference has none"
            saved = f"; run it again: python {found.script}" if found.script else ""
            lines.append(f"first {what}: {found.op}{_at(found.place)}, {whose}{saved}")
        lines += [f"run it again: python {script}" for script in self.scripts.values()]
        if self.drawn:
            lines.append(f"random, drawn by the device for both: {', '.join(self.drawn)}")
        lines += [f"not judged: {op}: {why}" for op, why in self.unjudged.items()]
        if self.elsewhere:
            lines.append(f"not looked at: {counted(self.elsewhere, 'call')} of modules in other threads")
        return lines

    def _grid(self) -> Grid:
        rows = sorted(self.rows(), key=lambda row: -row.excess)[:_SHOWN]
        words = ["fallback" if row.is_wrong else "native" for row in rows]
        return Grid(_COLUMNS, [_cells(row) for row in rows], words, _NUMBERS)


_COLUMNS = ("op", "module", "phase", "calls", "excess", "local", "ulp", "accumulated", "tolerance")
_NUMBERS = frozenset({"calls", "excess", "local", "ulp", "accumulated"})


def _cells(row: ShadowRow) -> tuple[str, ...]:
    judged = row.tolerance is not None
    return (
        row.op,
        row.module or "",
        str(row.phase),
        f"{row.calls:,}",
        f"{row.excess:.2g}" if judged else "",
        f"{row.local.max_abs:.2g}" if judged else "",
        f"{row.local.max_ulp:.3g}" if judged else "",
        f"{row.accumulated.max_abs:.2g}",
        row.tolerance.source if row.tolerance is not None else "not judged",
    )


def _at(where: Any) -> str:
    module = f" in {where.module}" if where.module else ""
    return f"{module} ({where.phase})"


def _times(excess: float) -> str:
    return "infinitely often" if math.isinf(excess) else f"{excess:.3g} times"


def _call_dict(call: Call) -> dict[str, Any]:
    return {**call._asdict(), "place": call.place._asdict()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return str(value)


def _written(path: str | os.PathLike[str], text: str) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
