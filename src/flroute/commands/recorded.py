"""``flroute diff`` and ``flroute replay``: what recorded runs say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flroute.commands.terminal import JsonOption, errors_in_words, new_table, print_json, terminal


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
