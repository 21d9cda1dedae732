"""Tables of text, for a terminal, a notebook and a page: the one place that writes HTML.

A part of a page takes its colours from whatever it is shown in: a notebook light or dark, or a page of its own in those of the
reader's system. Hues are only in the bar before a row, which shows on either, and add nothing to what the cells say.
"""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_STYLES = {"native": "green", "fallback": "bold yellow", "decomposed": "cyan", "beyond": "bold red"}
HUES = {"native": "#2e8b57", "fallback": "#b8720a", "decomposed": "#3b7fc4", "beyond": "#d0342c"}
"""Of the bar before a row: each stands out on white and on black."""

_STYLE = (
    ".flroute table{border-collapse:collapse;color:inherit}"
    ".flroute.flroute th,.flroute.flroute td{text-align:left;vertical-align:top;padding:.2em 1em .2em .4em;"
    "border-bottom:1px solid GrayText;background:none;color:inherit;white-space:pre-wrap;max-width:none}"
    ".flroute.flroute .flroute-number{text-align:right}"
    ".flroute.flroute p,.flroute.flroute pre{white-space:pre-wrap;color:inherit;background:none}"
    ".flroute.flroute pre{font-family:monospace}"
    + "".join(f".flroute-{word}>:first-child{{border-left:4px solid {hue}}}" for word, hue in HUES.items())
    + ".flroute-fallback,.flroute-beyond{font-weight:bold}"
)
"""Each class is said twice to come before Jupyter's own style for tables."""


@dataclass(frozen=True)
class Grid:
    """Rows of cells under a head.

    Attributes:
        columns: the head.
        rows: as many cells each.
        words: for each row the route whose style it gets, or ``beyond`` where it is beyond a tolerance; hues only add to what
            the cells say.
        numbers: columns whose cells stand to the right.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: Sequence[str] = ()
    numbers: frozenset[str] = field(default_factory=frozenset)

    def to_rich(self) -> Table:
        """For a terminal."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
        for name in self.columns:
            table.add_column(name, justify="right" if name in self.numbers else "left", no_wrap=True)
        for row, word in self._styled():
            table.add_row(*map(Text, row), style=_STYLES.get(word, "dim" if word else ""))
        return table

    def to_html(self) -> str:
        """For a notebook or a page; every cell is escaped."""
        kinds = [' class="flroute-number"' if name in self.numbers else "" for name in self.columns]
        head = _html_cells("th", self.columns, kinds)
        body = "".join(
            (f'<tr class="flroute-{html.escape(word)}">' if word in HUES else "<tr>")
            + _html_cells("td", row, kinds)
            + "</tr>"
            for row, word in self._styled()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _styled(self) -> list[tuple[tuple[str, ...], str]]:
        words = self.words or ("",) * len(self.rows)
        return [(row, str(word)) for row, word in zip(self.rows, words, strict=True)]


def _html_cells(tag: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(
        f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)
    )


def html_facts(facts: Mapping[str, object]) -> str:
    """Names with what they stand for, as HTML; those that stand for nothing (``None``, empty) are left out."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(str(fact))}</td></tr>'
        for name, fact in facts.items()
        if fact not in (None, "", (), 0)
    )
    return f"<table><tbody>{rows}</tbody></table>"


def html_lines(lines: Iterable[str]) -> str:
    """Lines of text as HTML, their indentation kept."""
    return f"<p>{'<br>'.join(map(html.escape, lines))}</p>"


def html_text(text: str) -> str:
    """Text whose columns stand below each other, as HTML."""
    return f"<pre>{html.escape(text)}</pre>"


def html_part(*parts: str) -> str:
    """What a notebook shows: parts made by the functions above, with the style they need."""
    return f'<div class="flroute"><style>{_STYLE}</style>{"".join(parts)}</div>'


def page(title: str, part: str) -> str:
    """A page of its own around what a notebook shows, in the colours the reader's system has."""
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:2em}</style></head>\n"
        f"<body>{part}</body></html>\n"
    )


def in_text(table: object) -> str:
    """What rich makes of a table, as plain text; in a notebook, too, where rich would else display it."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=_width(), color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


class TableAndText:
    """What is shown as one table and some lines below it: in terminals, as text, in notebooks."""

    def _grid(self) -> Grid:
        raise NotImplementedError

    def summary(self) -> list[str]:
        """What is to be said below the table."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._grid().to_rich()
        yield Text("\n".join(["", *self.summary()]))

    def __str__(self) -> str:
        return in_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_part(self._grid().to_html(), html_lines(self.summary()))


def shown_seconds(seconds: float | None) -> str:
    """``1.25 s`` or ``0.31 ms``; empty when nothing was timed."""
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _width() -> int:
    """The terminal's columns, and enough of them to keep names whole where there is no terminal."""
    try:
        return max(os.get_terminal_size().columns, 80)
    except OSError:
        return 160
