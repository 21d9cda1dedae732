"""``flroute scan``: what of a code base is bound to one kind of device, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flroute.commands.terminal import errors_in_words, fail, print_json, terminal

if TYPE_CHECKING:
    from flroute.scan.findings import FileScan, Scan


class ScanFormat(str, Enum):
    """What `flroute scan` prints."""

    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"


def scan(
    paths: Annotated[list[Path], typer.Argument(help="Files, and folders with Python files and notebooks.")],
    fix: Annotated[bool, typer.Option("--fix", help="Rewrite the files to device-neutral code.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what --fix would change; write nothing.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Find functions that this vendor has no kernel for, too.")
    ] = None,
    output: Annotated[
        ScanFormat, typer.Option("--format", help="For people, programs, or code hosts.")
    ] = ScanFormat.TABLE,
    everything: Annotated[bool, typer.Option("--all", help="Show what needs no edit, too.")] = False,
) -> None:
    """Find device-bound code and say what it takes to run it elsewhere; exits with 1 if an edit is needed.

    Exits with 0 if nothing is to be done, and with 2 if a file cannot be read. What --fix has rewritten is done.
    """
    try:
        import libcst  # noqa: F401 -- asked for before anything is read
    except ModuleNotFoundError:
        fail("code is read with libcst: pip install 'flroute[scan]'")
    from flroute.scan.files import write
    from flroute.scan.ops import ops_without_kernels
    from flroute.scan.scanning import scan_paths

    with errors_in_words():
        lacking = frozenset() if device is None else ops_without_kernels(device)
        found = scan_paths(paths, lacking=lacking, follow=_with_progress)
        if diff:
            _show_diff(found)
        elif fix:
            for file in found.files:
                if file.fixed is not None:
                    write(file, file.fixed)
            found = scan_paths(paths, lacking=lacking, follow=_with_progress)
    if not diff:
        _show(found, output, everything=everything)
    raise typer.Exit(found.exit_code)


def _show(found: Scan, output: ScanFormat, *, everything: bool) -> None:
    import flroute
    from flroute.scan.report import rendered
    from flroute.scan.sarif import to_sarif

    if output is ScanFormat.JSON:
        print_json(found.to_dict())
    elif output is ScanFormat.SARIF:
        print_json(to_sarif(found, flroute.__version__))
    else:
        terminal().print(rendered(found, everything=everything))


def _show_diff(found: Scan) -> None:
    from flroute.scan.report import diff_of

    for file in found.files:
        if file.fixed is not None:
            typer.echo("".join(diff_of(file, file.fixed)), nl=False)


def _with_progress(files: list[Path], scans: Iterator[FileScan]) -> Iterator[FileScan]:
    """Hand the scans on; a bar on standard error says how many there were, and goes when all are done."""
    columns = (TextColumn("scanning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(scans, total=len(files))
