"""``flroute compare``, ``record`` and ``consistency``: where the numbers of two runs part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flroute.commands.terminal import JsonOption, errors_in_words, function_named, print_json, terminal

TargetArgument = Annotated[
    str, typer.Argument(help="package.module:function or file.py:function; gives (model, inputs).")
]
BackwardOption = Annotated[bool, typer.Option(help="Compare gradients, too.")]
SeedOption = Annotated[int, typer.Option(help="Of the model that the function makes, and of what it draws.")]
HtmlOption = Annotated[Path | None, typer.Option(help="Also write a page, with a plot of the error.")]


def compare(
    target: TargetArgument,
    a: Annotated[str, typer.Option(help="Vendor or device; cpu, or host-float64.")] = "fl",
    b: Annotated[str, typer.Option(help="What it is compared with, likewise.")] = "cpu",
    backward: BackwardOption = True,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model on two devices and say where the numbers part; exits with 1 beyond the tolerance."""
    with errors_in_words():
        import flroute

        model, inputs = made_by(target, seed)
        found = flroute.compare(model, inputs, a, b, backward=backward, seed=seed)
    if html is not None:
        found.to_html(html)
    if as_json:
        print_json(found.to_dict())
    else:
        terminal().print(found)
    raise typer.Exit(0 if found.passed else 1)


def made_by(target: str, seed: int) -> tuple[Any, Any]:
    """The model and the inputs that a function gives, the same ones for the same seed."""
    import torch

    from flroute.drift.sides import seeded

    make = function_named(target)
    with seeded(seed, torch.device("cpu")):
        model, inputs = make()
    return model, inputs
