"""A scan for people: each file with its lines, then the edits there are to make, then the verdict."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flroute.report import counted
from flroute.scan.files import text_of
from flroute.scan.findings import KINDS, FileScan, Need, Scan, Verdict, blockers

_STYLES = {
    Verdict.NEUTRAL: "green",
    Verdict.RUNS: "cyan",
    Verdict.EDITS: "bold yellow",
    Verdict.BLOCKED: "bold red",
    Verdict.UNREADABLE: "bold red",
}


def rendered(scan: Scan, *, everything: bool) -> RenderableType:
    """All of it.

    Args:
        scan: what was found.
        everything: show what needs nothing, too.
    """
    parts: list[RenderableType] = []
    for file in scan.files:
        if everything or file.device_bound:
            parts += [_title(file), *_lines(file, everything=everything), ""]
    if parts:
        parts += [_edits(scan, everything=everything), ""]
    return Group(*parts, _total(scan, everything=everything))


def diff_of(file: FileScan, fixed: str) -> Iterator[str]:
    """What `--fix` changes in a file, as a unified diff."""
    before, after = text_of(file.path), fixed
    return difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        file.path,
        f"{file.path} (device-neutral)",
    )


def _title(file: FileScan) -> Text:
    title = Text(file.path, style="bold")
    return title.append(" ").append(
        f"{file.verdict.value}{blockers(file.findings)}", style=_STYLES[file.verdict]
    )


def _lines(file: FileScan, *, everything: bool) -> list[RenderableType]:
    table = _table("  line", "kind", "edit", folded=("here", "instead"))
    for found in file.findings if everything else file.device_bound:
        table.add_row(
            f"  {found.place}", found.kind.value, found.need.value, Text(found.source), Text(found.advice)
        )
    return [table]


def _edits(scan: Scan, *, everything: bool) -> RenderableType:
    table = _table("kind", "edit", "lines", "files", folded=("what it is",))
    for (kind, need), findings in scan.by_kind().items():
        if everything or need is not Need.NOTHING:
            files = len({finding.path for finding in findings})
            edit = KINDS[kind].edit.replace("`", "")
            table.add_row(kind.value, need.value, str(len(findings)), str(files), Text(edit))
    return table


def _table(*kept: str, folded: tuple[str, ...]) -> Table:
    """Columns that are kept whole, and those that give way where the terminal is narrow."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in kept:
        number = name.strip() in ("line", "lines", "files")
        table.add_column(name, no_wrap=True, justify="right" if number else "left")
    for name in folded:
        table.add_column(name, overflow="fold")
    return table


def _total(scan: Scan, *, everything: bool) -> Text:
    needs = [finding.need for finding in scan.findings]
    parts = [
        f"{needs.count(need)} {need.value}" for need in (Need.FIX, Need.HAND, Need.BLOCKED) if need in needs
    ]
    notes = needs.count(Need.NOTHING)
    if notes and not everything:
        parts.append(f"{notes} need nothing (--all shows them)")
    counts = f": {', '.join(parts)}" if parts else ""
    text = Text(f"{counted(scan.looked_at, 'file')}{counts}. The code ")
    return text.append(f"{scan.verdict_in_words}.", style=_STYLES[scan.verdict])
