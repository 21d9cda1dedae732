"""What ``consistency`` found: as a table, as a page, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flroute.drift.compare.comparison import number, plain, relative, written
from flroute.drift.compare.kept import Kept
from flroute.drift.measures import Difference
from flroute.report import counted
from flroute.tables import Grid, html_lines, html_part, in_text, page

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True)
class Way:
    """One way in which a model was run.

    Attributes:
        name: ``training``, ``inference``, ``compiled``, ``exported`` or ``quantized``.
        about: what was done, in words.
        tensors: what it gave.
        reason: why it could not run; empty if it did.
    """

    name: str
    about: str
    tensors: Mapping[str, Kept] = field(repr=False)
    reason: str = ""


@dataclass(frozen=True)
class PairDifference:
    """How far two ways are apart.

    Attributes:
        a: a way.
        b: what it is compared with.
        result: of what the model returns, the tensor that differs most.
        excess: how many times what is allowed; 0 where one of both is quantized, which is to differ.
        layer: the layer whose output differs most, relative to its largest element.
        turn: how often that layer was called before.
        of_layer: how far.
        layers: how many layers both ways have in common.
    """

    a: str
    b: str
    result: Difference
    excess: float
    layer: str
    turn: int
    of_layer: Difference
    layers: int


@dataclass(frozen=True)
class Consistency:
    """One checkpoint in all ways.

    Attributes:
        model: its class.
        device: where it ran.
        ways: those that were tried, in order.
        pairs: each two of those that ran.
    """

    model: str
    device: str
    ways: tuple[Way, ...]
    pairs: tuple[PairDifference, ...]

    @property
    def passed(self) -> bool:
        """Whether all ways that are to agree do; one that could not run says nothing."""
        return all(pair.excess <= 1 for pair in self.pairs)

    def pair(self, a: str, b: str) -> PairDifference:
        """How far two ways are apart.

        Raises:
            KeyError: one of them did not run.
        """
        for found in self.pairs:
            if {found.a, found.b} == {a, b}:
                return found
        raise KeyError(f"{a} and {b} were not compared")

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has; numbers that JSON lacks are words."""
        made: dict[str, Any] = plain({
            "schema_version": 1,
            "model": self.model,
            "device": self.device,
            "passed": self.passed,
            "ways": [{"name": way.name, "about": way.about, "reason": way.reason} for way in self.ways],
            "pairs": [{**asdict(pair), "relative": relative(pair.result)} for pair in self.pairs],
        })  # fmt: skip
        return made

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write ``to_dict()`` to ``path`` and return it; missing directories are made."""
        return written(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that needs no other file, and return ``path``; missing directories are made."""
        return written(path, page(f"flroute: consistency of {self.model}", self._repr_html_()))

    def summary(self) -> list[str]:
        """The result in lines of text."""
        ran = [way for way in self.ways if not way.reason]
        lines = [f"{self.model} on {self.device}: ran in {counted(len(ran), 'way')} of {len(self.ways)}"]
        lines += [f"{way.name}: {way.about}" for way in ran]
        lines += [f"{way.name} could not run: {way.reason}" for way in self.ways if way.reason]
        beyond = [f"{pair.a} and {pair.b}" for pair in self.pairs if pair.excess > 1]
        lines.append(
            f"beyond what is allowed: {', '.join(beyond)}" if beyond else "passed: all that are to agree do"
        )
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._grid().to_rich()
        yield ""
        yield Text("\n".join(self.summary()))

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_part(html_lines(self.summary()), self._grid().to_html())

    def _grid(self) -> Grid:
        rows = [
            (p.a, p.b, number(p.result.max_abs), number(p.result.mean_abs), number(relative(p.result)), f"{p.result.cosine:.6f}",
             _layer(p), number(relative(p.of_layer)) if p.layers else "")
            for p in self.pairs
        ]  # fmt: skip
        words = ["beyond" if p.excess > 1 else "" for p in self.pairs]
        return Grid(_COLUMNS, rows, words, _NUMBERS)


_COLUMNS = ("way", "against", "max abs", "mean abs", "relative", "cosine", "most in layer", "there")
_NUMBERS = frozenset({"max abs", "mean abs", "relative", "cosine", "there"})


def _layer(pair: PairDifference) -> str:
    if not pair.layers:
        return "no layer in common"
    if pair.of_layer.is_exact:
        return "none differs"
    return pair.layer + (f" (call {pair.turn + 1})" if pair.turn else "")
