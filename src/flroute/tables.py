"""Tables of text, for a terminal, a notebook and a page."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flroute.vocabulary import Route

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"native": "green", "fallback": "bold yellow", "decomposed": "cyan"}


@dataclass(frozen=True)
class Grid:
    """Rows of cells under a head.

    Attributes:
        columns: the head.
        rows: as many cells each.
        words: for each row the route whose style it gets; hues only add to what the cells say.
        numbers: columns whose cells stand to the right.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: Sequence[Route | str] = ()
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
        """For a page; every cell is escaped."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            f'<tr class="flroute-{html.escape(word)}">'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row, word in self._styled()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _styled(self) -> list[tuple[tuple[str, ...], str]]:
        words = self.words or ("",) * len(self.rows)
        return [(row, str(word)) for row, word in zip(self.rows, words, strict=True)]


def page(title: str, body: str) -> str:
    """A page of its own around a part of one, in the colours the reader's system has."""
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;margin:2em}"
        "table{border-collapse:collapse}th,td{text-align:left;padding:.2em 1em .2em 0;border-bottom:1px solid GrayText}"
        ".flroute-fallback{font-weight:bold}</style></head>\n"
        f"<body>{body}</body></html>\n"
    )


def in_text(table: object) -> str:
    """What rich makes of a table, as plain text."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=_width(), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


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
