"""The command line: each command is a function; ``flroute --help`` lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from flroute.commands import drift, health, inventory, recorded
from flroute.commands.bench import bench
from flroute.commands.bisect import bisect
from flroute.commands.bridge import bridge
from flroute.commands.run import CONTEXT, RunCommand, run
from flroute.commands.scan import scan
from flroute.commands.terminal import (
    JsonOption,
    errors_in_words,
    fail,
    function_named,
    new_table,
    print_json,
    terminal,
)
from flroute.vocabulary import FallbackPolicy

if TYPE_CHECKING:
    from flroute.disk_cache import Entry

app = typer.Typer(
    help="Bring a chip to PyTorch, and account for every operator call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    inventory.devices,
    inventory.ops,
    health.doctor,
    health.lock,
    recorded.diff,
    recorded.replay,
    drift.compare,
    drift.record,
    drift.consistency,
    bench,
    bridge,
    scan,
):
    app.command()(command)
app.command(context_settings={"allow_interspersed_args": False})(
    bisect
)  # what follows the command's name is its own
app.command(cls=RunCommand, context_settings=CONTEXT)(run)
app.command(cls=RunCommand, context_settings=CONTEXT)(run)
app.command(context_settings={"allow_interspersed_args": False})(
    bisect
)  # what follows the command's name is its own


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="How often every image is seen.")] = 12,
    device: Annotated[str, typer.Option(help="Vendor or device to train on.")] = "reference",
    fallback: Annotated[
        FallbackPolicy, typer.Option(help="When only the host can do the work.")
    ] = FallbackPolicy.ERROR,
    seed: Annotated[int, typer.Option(help="Decides weights and order of the images.")] = 0,
    decisions: Annotated[Path, typer.Option(help="File for every decision.")] = Path("demo-decisions.json"),
) -> None:
    """Train a small CNN on the host and on a device, and compare."""
    console = terminal()
    with errors_in_words():
        try:
            import sklearn  # noqa: F401 -- asked for before anything is trained
        except ModuleNotFoundError:
            fail("the demo's images come with scikit-learn: pip install 'flroute[demo]'")
        from flroute.demo import run

        kept = run(
            device=device, fallback=fallback.value, epochs=epochs, seed=seed, decisions=decisions, console=console
        )  # fmt: skip
    raise typer.Exit(0 if kept else 1)


@app.command()
def check(
    target: Annotated[
        str, typer.Argument(help="package.module:function or file.py:function; gives (model, inputs).")
    ],
    device: Annotated[str, typer.Option(help="Vendor or device to ask about.")] = "reference",
    backward: Annotated[bool, typer.Option(help="Check the backward pass, too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Find out what of a model would fall back, before anything runs; exits with 1 if something would.

    The function is called under `torch.device("meta")`, so that a model of any size takes no memory.
    """
    import torch

    import flroute

    with errors_in_words():
        make = function_named(target)
        with torch.device("meta"):
            model, inputs = make()
        found = flroute.check(model, inputs, device, backward=backward)
    if as_json:
        print_json(found.to_dict())
    else:
        terminal().print(found)
    raise typer.Exit(1 if found.missing else 0)


@app.command()
def config(
    as_json: JsonOption = False,
    check_it: Annotated[
        bool,
        typer.Option("--check", help="Find rules without effect instead; exits with 1 if there are any."),
    ] = False,
) -> None:
    """Show every setting in force in this directory, and where it comes from; or check the policy they make."""
    from flroute.settings import SETTINGS, Settings, explain_settings

    with errors_in_words():
        found = explain_settings()
        if check_it:
            _check_policy(found, as_json=as_json)
            return
    default = Settings()
    rows = [
        (name, found[name].value if name in found else getattr(default, name), found[name].where if name in found else "default")
        for name in SETTINGS
    ]  # fmt: skip
    if as_json:
        print_json([{"setting": name, "value": _plain(value), "where": where} for name, value, where in rows])
        return
    table = new_table("setting", "value", "from", "variable", "meaning")
    for name, value, where in rows:
        table.add_row(name, _shown(value), where, SETTINGS[name].variable, SETTINGS[name].description)
    terminal().print(table)


def _check_policy(found: Mapping[str, Any], *, as_json: bool) -> None:
    from flroute.policy_check import check_policy

    findings = check_policy(found)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(str(finding))
        typer.echo(f"{len(findings)} found" if findings else "nothing is wrong with the policy")
    raise typer.Exit(1 if findings else 0)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [asdict(item) if is_dataclass(item) else item for item in value]  # type: ignore[arg-type]
    return dict(value) if isinstance(value, Mapping) else value


def _shown(value: object) -> str:
    if value is None or value in ({}, ()):
        return "-"
    return json.dumps(_plain(value)) if isinstance(value, bool | Mapping | tuple) else str(value)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the compiled kernels that are kept on disk, those not used for longest first, or remove them."""
    from flroute.disk_cache import disk_cache
    from flroute.report import counted

    with errors_in_words():
        kept = disk_cache()
        try:
            entries = kept.entries()
            if clear:
                kept.clear()
        except OSError as error:
            fail(
                f"the cache cannot be read: {error}; the setting cache_dir (FLROUTE_CACHE_DIR) names another folder"
            )
    total = sum(entry.bytes for entry in entries)
    if as_json:
        listed = [] if clear else [{"name": entry.name, **asdict(entry)} for entry in entries]
        print_json(
            {
                "folder": str(kept.folder),
                "limit": kept.limit,
                "bytes": 0 if clear else total,
                "entries": listed,
            }
        )
        return
    console = terminal()
    amount = f"{counted(len(entries), 'compiled kernel')}, {total / 2**20:.1f}"
    if clear:
        console.print(f"{amount} MiB removed from {kept.folder}")
    elif not entries:
        console.print(f"nothing is kept in {kept.folder}")
    else:
        limit = f"of {kept.limit / 2**20:.0f} MiB"
        console.print(
            _cache_table(entries), f"{amount} {limit} in {kept.folder}; flroute cache --clear removes them"
        )


def _cache_table(entries: list[Entry]) -> Table:
    table = new_table("kernel", "versions", "KiB", "last used")
    by_name: dict[str, list[Entry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    for name, group in sorted(by_name.items(), key=lambda item: item[1][-1].used):
        used = datetime.fromtimestamp(group[-1].used, tz=timezone.utc).astimezone()
        size = sum(entry.bytes for entry in group) / 1024
        table.add_row(name, str(len(group)), f"{size:.1f}", f"{used:%Y-%m-%d %H:%M}")
    return table
