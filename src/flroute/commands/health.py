"""``flroute doctor`` and ``flroute lock``: what this environment is, and whether it works."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flroute.commands.terminal import JsonOption, errors_in_words, new_table, print_json, terminal

if TYPE_CHECKING:
    from flroute.lockfile import Drift


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Compute nothing on the devices.")] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="This must be the environment in the nearest flroute.lock.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what failed to load, what each device computes, and what to do; exits with 1 if something is red."""
    from flroute.doctor import diagnose

    diagnosis = diagnose(with_trials=not quick, locked=locked)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        terminal().print(diagnosis)
    raise typer.Exit(0 if diagnosis.healthy else 1)


def lock(
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("flroute.lock"),
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Write nothing; compare two lock files, exit with 1 if they differ."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write down this environment: PyTorch, flroute, plugins, drivers, firmware, and the schema of every op."""
    with errors_in_words():
        from flroute import lockfile

        if diff is None:
            found = lockfile.here()
            path = found.write(output)
        else:
            drifts = lockfile.compare(*map(lockfile.read, diff))
    if diff is not None:
        _show(drifts, *diff, as_json=as_json)
        raise typer.Exit(1 if drifts else 0)
    if as_json:
        print_json({**found.to_dict(), "path": str(path)})
        return
    packages = dict.fromkeys([f"flroute {found.flroute}", *found.plugins.values()])
    ops = (f"{len(found.ops_of(name))} ops of {name} ({digest})" for name, digest in found.namespaces.items())
    terminal().print(f"{path}: torch {found.torch}, {', '.join([*packages, *ops])}")


def _show(drifts: list[Drift], before: Path, after: Path, *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(drift) for drift in drifts])
        return
    if not drifts:
        terminal().print(f"{before} and {after} describe the same environment")
        return
    table = new_table("what", str(before), str(after))
    for drift in drifts:
        table.add_row(drift.what, drift.locked or "-", drift.found or "-")
        for op in drift.changed:
            table.add_row("", op, "changed")
        for op in drift.gone:
            table.add_row("", op, "-")
        for op in drift.new:
            table.add_row("", "-", op)
    terminal().print(table)
