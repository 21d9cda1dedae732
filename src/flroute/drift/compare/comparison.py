"""What a comparison found: as a table, as a page with a plot, as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flroute.drift.compare.alignment import Detour
from flroute.drift.compare.error_plot import plot
from flroute.drift.compare.run import Local, Origin, place_in_words
from flroute.drift.measures import Difference
from flroute.report import counted
from flroute.tables import Grid, html_lines, html_part, in_text, page
from flroute.vocabulary import Phase

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_SHOWN_OPS = 12
_SHOWN_VARIANTS = 3


_ELSEWHERE = "infinities and NaNs stand elsewhere"


@dataclass(frozen=True)
class OpDifference:
    """One call of an op, in both runs.

    Attributes:
        op: ``aten::mm``.
        module: where in the model.
        phase: forward or backward.
        at: its number among the calls of the first run.
        accumulated: how far its result is from the other run's; ``None`` where that has no such call.
        local: how far it is from what the host makes of the same arguments; ``None`` where that is not known.
        by: the place whose call it is: the second, where that one is a device, too, and makes the larger error.
        unjudged: why there is no local error.
    """

    op: str
    module: str
    phase: Phase
    at: int
    accumulated: Difference | None
    local: Local | None
    by: str
    unjudged: str = ""

    @property
    def excess(self) -> float:
        """How many times its tolerance the call itself errs; 0 where that is not known."""
        return self.local.excess if self.local is not None else 0.0

    @property
    def place(self) -> str:
        """Where it was called, in words."""
        return place_in_words(self.module, self.phase)


@dataclass(frozen=True)
class TensorDifference:
    """One tensor in both runs: a layer's output, its gradient, a parameter's gradient, a buffer.

    Attributes:
        what: ``output``, ``gradient``, ``result``, ``gradient of parameter``, ``gradient of input`` or ``buffer``.
        name: of the layer, parameter or buffer.
        kind: the layer's class; empty for others.
        turn: how often the layer was called before.
        difference: how far the first run's is from the second's.
        excess: how many times what is allowed; above 1 the runs differ here.
        noise: how far the host itself is from float64 there, at most; ``None`` where that is not known.
        whole: whether all elements were compared.
    """

    what: str
    name: str
    kind: str
    turn: int
    difference: Difference
    excess: float
    noise: float | None
    whole: bool = True

    @property
    def relative(self) -> float:
        """The largest difference, relative to the largest element."""
        return relative(self.difference)

    @property
    def in_words(self) -> str:
        """``output of encoder.layer.3``."""
        of = " of" if self.what in ("output", "gradient") else ""
        return f"{self.what}{of} {_again(self.name or 'the model itself', self.turn)}"


def relative(found: Difference) -> float:
    """The largest difference, relative to the largest element."""
    if found.mismatched_nonfinite:
        return math.inf
    if not found.max_abs:
        return 0.0
    return found.max_abs / found.scale if found.scale else math.inf


@dataclass(frozen=True)
class LayerShare:
    """What the ops of one layer add to the error.

    Attributes:
        module: the layer's path.
        kind: its class.
        added: root of the sum of squares of its ops' local errors, in units of their tolerances.
        op: which adds most of it.
        excess: how many times its tolerance that op errs.
    """

    module: str
    kind: str
    added: float
    op: str
    excess: float


@dataclass(frozen=True)
class Divergence:
    """Where two runs part.

    Attributes:
        where: the place in the model, in words.
        op: which is to blame; empty where only a tensor is known to differ.
        module: its path.
        phase: forward or backward.
        why: in words.
    """

    where: str
    op: str
    module: str
    phase: Phase
    why: str


@dataclass(frozen=True)
class Comparison:
    """Two runs of one model, compared; printed as a table, shown in a notebook, written as HTML or JSON.

    Attributes:
        a: what was run first, and where.
        b: what it is compared with.
        ops: the calls of the first run, in order.
        tensors: what the runs have in common beyond ops, in order: outputs of layers, gradients, buffers.
        shares: what each layer adds to the error, most first.
        detours: where data sent the first run another way.
        failure: what one run raised and the other did not; empty if nothing.
        remarks: what could not be compared, and what is served by other ops.
    """

    a: Origin
    b: Origin
    ops: tuple[OpDifference, ...]
    tensors: tuple[TensorDifference, ...]
    shares: tuple[LayerShare, ...]
    detours: tuple[Detour, ...] = ()
    failure: Divergence | None = None
    remarks: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether nothing is beyond its tolerance, both took the same way, and neither failed alone."""
        return self.first_divergence is None

    @property
    def culprits(self) -> list[OpDifference]:
        """Calls that err beyond their tolerance by themselves, in the order called."""
        return [op for op in self.ops if op.excess > 1]

    @property
    def diverged(self) -> list[TensorDifference]:
        """Tensors that differ beyond what is allowed, in order."""
        return [tensor for tensor in self.tensors if tensor.excess > 1]

    @property
    def worst_layer(self) -> LayerShare | None:
        """The layer that adds most to the error; ``None`` where no layer adds any."""
        return self.shares[0] if self.shares and self.shares[0].added > 0 else None

    @property
    def first_divergence(self) -> Divergence | None:
        """The op that errs first; if none does, the first tensor that differs, another way taken, or a failure."""
        for op in self.culprits[:1]:
            return Divergence(op.place, op.op, op.module, op.phase, _error_of_op(op))
        if self.detours:
            way = self.detours[0]
            return Divergence(
                place_in_words(way.module, way.phase), "", way.module, way.phase, self._way(way)
            )
        if self.failure is not None:
            return self.failure
        for tensor in self.diverged[:1]:
            phase = Phase.BACKWARD if tensor.what.startswith("gradient") else Phase.FORWARD
            far = (
                _ELSEWHERE
                if tensor.difference.mismatched_nonfinite
                else f"differs by {tensor.difference.max_abs:.3g} at most, {tensor.excess:.3g} times what is allowed"
            )
            return Divergence(tensor.in_words, "", tensor.name, phase, f"{far}, and no op errs by itself")
        return None

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has; numbers that JSON lacks are words."""
        first = self.first_divergence
        worst = self.worst_layer
        made: dict[str, Any] = plain({
            "schema_version": 1,
            "a": asdict(self.a),
            "b": asdict(self.b),
            "passed": self.passed,
            "first_divergence": None if first is None else asdict(first),
            "worst_layer": None if worst is None else asdict(worst),
            "detours": [asdict(detour) for detour in self.detours],
            "remarks": self.remarks,
            "layers": [asdict(share) for share in self.shares],
            "tensors": [{**asdict(tensor), "relative": tensor.relative} for tensor in self.tensors],
            "ops": [asdict(op) for op in self.ops],
        })  # fmt: skip
        return made

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write ``to_dict()`` to ``path`` and return it; missing directories are made."""
        return written(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that needs no other file, and return ``path``; missing directories are made."""
        title = f"flroute: {self.a.place} against {self.b.place}"
        return written(path, page(title, self._repr_html_()))

    def summary(self) -> list[str]:
        """The result in lines of text."""
        a, b = self.a.place, self.b.place
        passes = "forward and backward" if self.a.backward else "forward"
        calls, tensors = counted(len(self.ops), "call"), counted(len(self.tensors), "tensor")
        lines = [
            f"{a} is {self.a.device}; {b} is {self.b.device}",
            f"{self.a.model}, {passes}: {calls} of ops and {tensors} compared",
        ]
        first, worst = self.first_divergence, self.worst_layer
        if first is None:
            lines.append("passed: nothing is beyond its tolerance")
        else:
            lines.append(
                f"first divergence: {f'{first.op} in ' if first.op else ''}{first.where}: {first.why}"
            )
        if worst is not None:
            lines.append(
                f"most is added by {worst.module or 'the model itself'} ({worst.kind}), there by {worst.op}: "
                f"{_of_tolerance(worst.excess)}"
            )
        lines += [self._way(detour) for detour in self.detours[:_SHOWN_VARIANTS]]
        if self.failure is not None:
            lines.append(f"{self.failure.where}: {self.failure.why}")
        if len(self.diverged):
            lines.append(
                f"beyond what is allowed: {counted(len(self.diverged), 'tensor')}, first the {self.diverged[0].in_words}"
            )
        return lines + [f"note: {remark}" for remark in self.remarks]

    def _way(self, detour: Detour) -> str:
        return detour.in_words(self.a.place, self.b.place)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        measures = _MEASURES if options.max_width >= _WIDE else _FEW_MEASURES
        yield self._tensor_grid(measures).to_rich()
        yield ""
        yield self._op_grid(self._worst_ops(), measures).to_rich()
        yield ""
        yield Text("\n".join(self.summary()))

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook."""
        tables = self._tensor_grid(_MEASURES), self._op_grid(self.ops, _MEASURES)
        return html_part(
            html_lines(self.summary()), plot(self.tensors), *(table.to_html() for table in tables)
        )

    def _worst_ops(self) -> list[OpDifference]:
        """Those that err most, and what errs first."""
        worst = sorted(self.ops, key=lambda op: -op.excess)[:_SHOWN_OPS]
        return sorted({*worst, *self.culprits[:1]}, key=lambda op: op.at)

    def _tensor_grid(self, measures: Sequence[str]) -> Grid:
        rows = [
            (t.what, _again(t.name, t.turn), t.kind, *_cells(t.difference, measures), number(t.excess))
            for t in self.tensors
        ]
        columns = ("what", "of", "class", *measures, _ALLOWED)
        return Grid(columns, rows, [_word(t.excess) for t in self.tensors], _RIGHT)

    def _op_grid(self, ops: Sequence[OpDifference], measures: Sequence[str]) -> Grid:
        rows = [
            (op.op, op.place, *_cells(op.local.difference if op.local else None, measures),
             number(op.excess) if op.local else op.unjudged or "not asked", op.local.source if op.local else "",
             number(op.accumulated.max_abs) if op.accumulated else "")
            for op in ops
        ]  # fmt: skip
        columns = ("op", "in", *measures, _ALLOWED, "by", "accumulated")
        return Grid(columns, rows, [_word(op.excess) for op in ops], _RIGHT)


_MEASURES = ("max abs", "mean abs", "max rel", "mean rel", "ulp", "cosine")
_FEW_MEASURES = ("max abs", "max rel", "ulp", "cosine")
_WIDE = 180
"""Columns of a terminal that hold a line with all measures."""
_ALLOWED = "times allowed"
_RIGHT = frozenset({*_MEASURES, _ALLOWED, "accumulated"})


def _cells(found: Difference | None, measures: Sequence[str]) -> tuple[str, ...]:
    if found is None:
        return ("",) * len(measures)
    values = {
        "max abs": number(found.max_abs),
        "mean abs": number(found.mean_abs),
        "max rel": number(found.max_rel),
        "mean rel": number(found.mean_rel),
        "ulp": number(found.max_ulp),
        "cosine": f"{found.cosine:.6f}",
    }
    return tuple(values[name] for name in measures)


def _again(name: str, turn: int) -> str:
    return f"{name} (call {turn + 1})" if turn else name


def number(value: float) -> str:
    """With two digits, as in the cells of a table."""
    return "0" if value == 0 else f"{value:.2g}"


def _word(excess: float) -> str:
    return "beyond" if excess > 1 else ""


def _of_tolerance(excess: float) -> str:
    return f"{excess:.2g} times its tolerance" if math.isfinite(excess) else "infinitely beyond its tolerance"


def _error_of_op(op: OpDifference) -> str:
    if op.local is None:
        return ""
    found = op.local.difference
    far = _ELSEWHERE if found.mismatched_nonfinite else f"it is {found.max_abs:.3g} off at most"
    return (
        f"on {op.by}, for the arguments it was given, {far}: {_of_tolerance(op.local.excess)} "
        f"({op.local.tolerance}; {op.local.source})"
    )


def plain(value: Any) -> Any:
    """In types that JSON has; infinities and NaN as words."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def written(path: str | os.PathLike[str], text: str) -> Path:
    """``path``, with that text in it; missing directories are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
