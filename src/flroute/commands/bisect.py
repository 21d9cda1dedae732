"""``flroute bisect``: which ops spoil a metric."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flroute.commands.terminal import JsonOption, errors_in_words, fail, function_named, print_json, terminal

if TYPE_CHECKING:
    from collections.abc import Callable

STATE = Path("flroute-bisect.json")

_FUNCTION = re.compile(r"[^\s:=]+:[A-Za-z_]\w*")


def bisect(
    what: Annotated[
        list[str],
        typer.Argument(
            help="A command that prints a number (-- python eval.py), or file.py:function, package.module:function, "
            "which returns it."
        ),
    ],
    tolerance: Annotated[float, typer.Option(help="How far from the good value counts as good.")],
    relative: Annotated[
        bool, typer.Option("--relative", help="The tolerance is a share of the good value.")
    ] = False,
    good: Annotated[
        float | None, typer.Option(help="The good value; what the host computes if absent.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Regular expression whose first group is the number, in its last match on stdout. If absent, the last line "
            "`metric: x` counts, else the last number."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Vendor or device, where the program does not say.")
    ] = None,
    state: Annotated[
        Path, typer.Option(help="File from which an interrupted search goes on; removed at the end.")
    ] = STATE,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest set of ops whose kernels spoil a number; exits with 1 if there are any.

    Runs the command, or calls the function, with ever other ops sent to the host: some ten times for one op at fault.
    """
    with errors_in_words():
        import flroute

        program: Callable[[], Any] | list[str] = what
        if len(what) == 1 and _FUNCTION.fullmatch(what[0]) and not Path(what[0]).exists():
            program = function_named(what[0])
        try:
            found = flroute.bisect(
                program, tolerance, relative=relative, good=good, pattern=metric, device=device, state=state
            )
        except KeyboardInterrupt:
            fail(f"interrupted: the same command goes on from {state}")
    if as_json:
        print_json(found.to_dict())
    else:
        terminal().print(str(found), highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if found.ops else 0)
