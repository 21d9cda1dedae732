"""``flroute devices`` and ``flroute ops``: what there is, and what it can do."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from flroute.commands.terminal import JsonOption, errors_in_words, fail, new_table, print_json, terminal

if TYPE_CHECKING:
    from flroute.coverage import Coverage
    from flroute.device.table import Device


class Output(str, Enum):
    """How ``flroute ops`` prints."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


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
