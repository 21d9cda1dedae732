"""``flroute bench``: a device against the host."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flroute.commands.terminal import (
    JsonOption,
    errors_in_words,
    fail,
    function_named,
    new_table,
    print_json,
    terminal,
)

if TYPE_CHECKING:
    import torch

    from flroute.benchmark.cases import Case
    from flroute.benchmark.measure import Change, Results, Row


def bench(
    op: Annotated[
        str | None, typer.Option(help="One op in place of the table: aten::softmax, aten::mul.Tensor.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Of the op's tensors, in order: 1024x1024. The last one serves for the rest."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Likewise; float32 if absent.")] = None,
    arg: Annotated[list[str] | None, typer.Option(help="What else the op takes: dim=-1.")] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:function or file.py:function; gives (model, inputs).")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Training steps of the model in place of inference.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Cases of the table whose name contains this.")
    ] = None,
    device: Annotated[str, typer.Option(help="Vendor or device.")] = "reference",
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each case; the median counts.")] = 11,
    save: Annotated[Path | None, typer.Option(help="Write the results to this file.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Compare with results that were saved; exits with 1 if slower.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, max=1, help="What share of its speed relative to the host a case may lose."),
    ] = 0.2,
    as_json: JsonOption = False,
) -> None:
    """Time a device against the host, in turn: a table of ops, an op of yours, or a model from end to end."""
    with errors_in_words():
        cases = _cases(op, shape, dtype, arg, model, only, train=train)
        from flroute.benchmark import measure

        before = (
            measure.read(compare) if compare else None
        )  # a file that cannot be read is told before minutes go by
        found = measure.run(_with_progress(cases), device=device, rounds=rounds)
        if save:
            found.write(save)
        changes = measure.changes(before, found) if before else []
    slower = [change for change in changes if change.is_regression(tolerance)]
    if as_json:
        compared = [
            {"name": c.name, "before": c.before, "after": c.after, "regression": c in slower} for c in changes
        ]
        print_json({**found.to_dict(), "compared": compared})
    else:
        _show(found)
        if before:
            _show_changes(before, changes, slower, tolerance)
    raise typer.Exit(1 if slower else 0)


def _cases(
    op: str | None,
    shape: list[str] | None,
    dtype: list[str] | None,
    arg: list[str] | None,
    model: str | None,
    only: list[str] | None,
    *,
    train: bool,
) -> list[Case]:
    """What was asked for; options that do not belong together are refused, not ignored."""
    if sum(map(bool, (op, model, only))) > 1:
        fail("--op, --model and --only exclude each other: they are an op, a model, and a part of the table")
    if (shape or dtype or arg) and not op:
        fail("--shape, --dtype and --arg belong to --op")
    if train and not model:
        fail("--train belongs to --model")
    if op:
        if not shape:
            fail("--op needs at least one --shape, such as --shape 1024x1024")
        from flroute.benchmark.ops import op_case

        dtypes = [_dtype(text) for text in dtype or ["float32"]]
        return [op_case(op, [_shape(text) for text in shape], dtypes, dict(map(_argument, arg or ())))]
    if model:
        from flroute.benchmark.models import model_case

        made = function_named(model)()
        if not isinstance(made, tuple) or len(made) != 2:
            fail(f"{model} must give (model, inputs), it gave {type(made).__name__}")
        return [model_case(model, *made, train=train)]
    from flroute.benchmark.cases import cases

    chosen = [case for case in cases() if not only or any(text in case.name for text in only)]
    return chosen or fail(f"no case of the table contains {' or '.join(map(repr, only or ()))}")


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split("x")) if text != "scalar" else ()
    except ValueError:
        fail(f"--shape {text!r}: write sizes with x between them, such as 1024x1024, or scalar")


def _dtype(text: str) -> torch.dtype:
    import torch

    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        fail(f"--dtype {text!r}: PyTorch has no such dtype; write float32, bfloat16, int64 and the like")
    return found


def _argument(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--arg {text!r}: write name=value, such as dim=-1")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word, such as approximate=tanh


def _with_progress(cases: list[Case]) -> Iterable[Case]:
    from rich.progress import track

    console = Console(stderr=True)
    return track(cases, "measuring", console=console, transient=True, disable=not console.is_terminal)


def _show(results: Results) -> None:
    models = any(row.samples for row in results.rows)
    columns = ["case", "host", results.device, "host / device"]
    columns += ["host samples/s", f"{results.device} samples/s"] if models else []
    table = new_table(*columns, "computed by the host")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in sorted(results.rows, key=lambda row: row.ratio):
        cells = [
            row.name,
            _time(row.host_seconds),
            _time(row.device_seconds),
            f"{row.ratio:.2f}",
            *_rates(row, models),
        ]
        table.add_row(*cells, ", ".join(row.fallbacks))
    terminal().print(table)
    terminal().print(
        f"medians, in wall time; above 1 the device is faster. torch {results.torch} with {results.threads} threads on the host"
    )


def _rates(row: Row, models: bool) -> list[str]:
    if not models:
        return []
    return [
        f"{row.samples / seconds:,.1f}" if row.samples else ""
        for seconds in (row.host_seconds, row.device_seconds)
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def _show_changes(before: Results, changes: list[Change], slower: list[Any], tolerance: float) -> None:
    table = new_table("case", "host / device before", "now", "")
    for change in changes:
        table.add_row(
            change.name, f"{change.before:.2f}", f"{change.after:.2f}", "slower" if change in slower else ""
        )
    console = terminal()
    console.print()
    console.print(table)
    than = f"{before.device} with torch {before.torch}"
    console.print(
        f"{len(slower)} of {len(changes)} lost more than {tolerance:.0%} of their speed to what it was on {than}"
    )
