"""The command line: ``flroute demo | devices | ops | check | doctor | lock | config | cache | diff | replay | bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from flroute.commands import health
from flroute.commands.bench import bench
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
    from flroute.coverage import Coverage
    from flroute.device.table import Device
    from flroute.disk_cache import Entry

app = typer.Typer(
    help="Bring a chip to PyTorch, and account for every operator call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(health.doctor)
app.command()(health.lock)
app.command()(bench)


class Output(str, Enum):
    """How ``flroute ops`` prints."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


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
def devices(as_json: JsonOption = False) -> None:
    """List every device of every vendor."""
    with errors_in_words():
        import flroute

        found = flroute.devices()
    if as_json:
        print_json([{"device": d.name, "vendor_device": d.vendor_device, **_facts_of(d)} for d in found])
        return
    table = new_table(
        "device", "vendor's name", "product", "memory", "cores", "version", "driver", "firmware"
    )
    for device in found:
        facts = _facts_of(device)
        memory, cores = (
            f"{device.facts.total_memory / 2**30:.1f} GiB",
            str(device.facts.multi_processor_count),
        )
        versions = (facts[name] or "-" for name in ("version", "driver", "firmware"))
        table.add_row(device.name, device.vendor_device, device.facts.name, memory, cores, *versions)
    terminal().print(table)


def _facts_of(device: Device) -> dict[str, Any]:
    """What its vendor says of a device and of itself."""
    from flroute import registry

    vendor = registry.load().vendors[device.vendor]
    versions = {
        "version": vendor.version, "driver": vendor.driver_version, "firmware": vendor.firmware_version
    }  # fmt: skip
    return {**asdict(device.facts), **versions}


@app.command()
def ops(
    pattern: Annotated[
        str | None, typer.Argument(help="One op or a glob, such as add or '*pool*', instead of families.")
    ] = None,
    vendor: Annotated[str | None, typer.Option(help="Whose device; the default is the first.")] = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="List the vendor's kernels.")] = False,
    output: Annotated[Output, typer.Option("--format", help="How to print it.")] = Output.TABLE,
) -> None:
    """Say what becomes of every aten op on a vendor's device: coverage by family, single ops, or the kernels."""
    with errors_in_words():
        from flroute import registry
        from flroute.coverage import Coverage, coverage_of

        found = coverage_of(vendor or next(iter(registry.load().vendors), ""))
    if pattern is not None:
        found = Coverage(found.vendor, found.matching(pattern))
        if not found.ops:
            fail(
                f"no op of this PyTorch is called {pattern!r}; a glob such as '*{pattern}*' finds parts of names"
            )
    if kernels:
        _print_kernels(found.vendor, {op.op for op in found.ops}, output)
    elif output is Output.JSON:
        print_json(found.to_dict())
    elif output is Output.MARKDOWN:
        typer.echo(found.to_markdown(), nl=False)
    else:
        terminal().print(_ops_table(found) if pattern is not None else _families_table(found))


def _families_table(coverage: Coverage) -> Group:
    from rich.text import Text

    from flroute.vocabulary import OpState

    table = new_table("family", *map(str, OpState))
    for column in table.columns[1:]:
        column.justify = "right"
    for family, count in coverage.by_family().items():
        table.add_row(family, *(str(count[state] or "") for state in OpState))
    hint = "flroute ops add and flroute ops '*pool*' show single ops, --kernels the kernels."
    return Group(Text(coverage.summary), "", table, "", hint)


def _ops_table(coverage: Coverage) -> Table:
    table = new_table("op", "state", "kernels")
    for op in coverage.ops:
        table.add_row(op.op, str(op.state), ", ".join(op.kernels))
    return table


def _print_kernels(vendor: str, ops: set[str], output: Output) -> None:
    """The vendor's kernels for ``ops``, best candidate first."""
    from flroute import registry

    rows = [
        (op, f"{vendor}/{kernel.name}", [str(dtype).removeprefix("torch.") for dtype in kernel.dtypes])
        for op, kernels in sorted(registry.load().kernels[vendor].items())
        for kernel in kernels
        if op in ops
    ]
    if output is Output.JSON:
        print_json([{"op": op, "kernel": kernel, "dtypes": dtypes} for op, kernel, dtypes in rows])
    elif output is Output.MARKDOWN:
        typer.echo("| op | kernel | dtypes |\n|---|---|---|")
        for op, kernel, dtypes in rows:
            typer.echo(f"| `{op}` | `{kernel}` | {', '.join(dtypes) or 'any'} |")
    else:
        table = new_table("op", "kernel", "dtypes")
        for op, kernel, dtypes in rows:
            table.add_row(op, kernel, ", ".join(dtypes) or "any")
        terminal().print(table, f"{len({op for op, _, _ in rows})} ops, {len(rows)} kernels")


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
    for name, group in by_name.items():
        used = datetime.fromtimestamp(group[-1].used, tz=timezone.utc).astimezone()
        size = sum(entry.bytes for entry in group) / 1024
        table.add_row(name, str(len(group)), f"{size:.1f}", f"{used:%Y-%m-%d %H:%M}")
    return table


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A trace, or a report's JSON.")],
    after: Annotated[Path, typer.Argument(help="Likewise, of the run to compare with it.")],
    as_json: JsonOption = False,
) -> None:
    """Compare how two runs were routed; exits with 1 if an op falls back that did not before."""
    with errors_in_words():
        from flroute.routing.trace import read
        from flroute.trace_diff import compare

        runs = [read(path) for path in (before, after)]
    changes = compare(*(run.decisions for run in runs))
    worse = sum(change.is_new_fallback for change in changes)
    for run in runs:
        if run.remark:
            typer.secho(run.remark, err=True, fg=typer.colors.YELLOW)
    if as_json:
        print_json(
            [
                {**asdict(change), "kind": change.kind, "new_fallback": change.is_new_fallback}
                for change in changes
            ]
        )
    else:
        table = new_table("op", "dtypes", "", "before", "after")
        for change in changes:
            style = "bold yellow" if change.is_new_fallback else None
            ways = ("\n".join(change.before) or "-", "\n".join(change.after) or "-")
            table.add_row(change.op, ", ".join(change.dtypes), change.kind, *ways, style=style)
        console = terminal()
        console.print(table if changes else "no op is served in another way")
        console.print(f"{len(changes)} changed, {worse} of them new fallbacks")
    raise typer.Exit(1 if worse else 0)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A trace, or a report's JSON.")],
    policy: Annotated[Path, typer.Option(help="A settings file: flroute.toml, or pyproject.toml.")],
    as_json: JsonOption = False,
) -> None:
    """Say what another policy would have chosen in a recorded run; exits with 1 if an op would fall back that did not."""
    with errors_in_words():
        from flroute.policy_check import refuse_unknown_ops
        from flroute.replay import replay as replayed
        from flroute.routing.trace import read
        from flroute.settings import Settings, explain_file

        origins = explain_file(policy)
        refuse_unknown_ops(origins)
        recorded = read(file)
        found = replayed(
            recorded.decisions, Settings(**{name: origin.value for name, origin in origins.items()})
        )
    if recorded.remark:
        typer.secho(recorded.remark, err=True, fg=typer.colors.YELLOW)
    changed = [row for row in found if row.changed]
    worse = sum(row.is_new_fallback for row in changed)
    if as_json:
        rows = [{**asdict(row), "changed": row.changed, "new_fallback": row.is_new_fallback} for row in found]
        print_json(rows)
    else:
        table = new_table("op", "dtypes", "shapes", "calls", "recorded", "then", "why")
        for row in changed:
            d, then = (
                row.decision,
                f"{row.route} {row.kernel or ''}" + ("" if row.certain else " (if it accepts)"),
            )
            shapes = " ".join(str(list(shape)) for shape in d.shapes)
            table.add_row(
                d.op, ", ".join(d.dtypes), shapes, f"{d.calls:,}", f"{d.route} {d.kernel or ''}", then, row.detail,
                style="bold yellow" if row.is_new_fallback else None,
            )  # fmt: skip
        console = terminal()
        console.print(table if changed else "no decision would be another one")
        console.print(f"{len(found)} decisions, {len(changed)} of them other ones, {worse} new fallbacks")
        if untold := sum(not row.told for row in found):
            console.print(f"{untold} could not be told")
    raise typer.Exit(1 if worse else 0)
