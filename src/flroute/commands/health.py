"""``flroute doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from flroute.commands.terminal import JsonOption, print_json, terminal


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Compute nothing on the devices.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what failed to load, what each device computes, and what to do; exits with 1 if something is red."""
    from flroute.doctor import diagnose

    diagnosis = diagnose(with_trials=not quick)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        terminal().print(diagnosis)
    raise typer.Exit(0 if diagnosis.healthy else 1)
