"""``flroute compare``, ``record`` and ``consistency``: where the numbers of two runs part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flroute.commands.terminal import JsonOption, errors_in_words, fail, function_named, print_json, terminal

if TYPE_CHECKING:
    from flroute.drift.compare.comparison import Comparison
    from flroute.drift.consistency.report import Consistency

TargetArgument = Annotated[
    str, typer.Argument(help="package.module:function or file.py:function; gives (model, inputs).")
]
BackwardOption = Annotated[bool, typer.Option(help="Compare gradients, too.")]
SeedOption = Annotated[int, typer.Option(help="Of the model that the function makes, and of what it draws.")]
HtmlOption = Annotated[Path | None, typer.Option(help="Also write a page, with a plot of the error.")]


def compare(
    target: Annotated[
        str,
        typer.Argument(
            help="package.module:function or file.py:function that gives (model, inputs); or a recorded run."
        ),
    ],
    other: Annotated[
        Path | None, typer.Argument(help="The recorded run that the first one is compared with.")
    ] = None,
    a: Annotated[str, typer.Option(help="Vendor or device; cpu, or host-float64.")] = "fl",
    b: Annotated[str, typer.Option(help="What it is compared with, likewise.")] = "cpu",
    backward: BackwardOption = True,
    seed: SeedOption = 0,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            help="PATTERN=RTOL or PATTERN=RTOL:ATOL for ops (aten::mm) and tensors (output, gradient*)."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model on two devices, or read two recorded runs, and say where the numbers part; exits with 1 beyond the tolerance."""
    with errors_in_words():
        import flroute

        tolerances = dict(map(_tolerance_said, tolerance or ()))
        if other is not None:
            found = flroute.compare_saved(target, other, tolerances=tolerances)
        else:
            model, inputs = made_by(target, seed)
            found = flroute.compare(model, inputs, a, b, backward=backward, seed=seed, tolerances=tolerances)
    _show(found, html, as_json=as_json)


def record(
    target: TargetArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("run.flrun"),
    device: Annotated[str, typer.Option(help="Vendor or device; cpu for the host.")] = "fl",
    backward: BackwardOption = True,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a model on a device and keep what `flroute compare A B` needs of it; exits with 1 if the model raised an error."""
    with errors_in_words():
        import flroute
        from flroute.drift.compare.saved_runs import described

        model, inputs = made_by(target, seed)
        run = flroute.record(model, inputs, output, device, backward=backward, seed=seed)
    if as_json:
        print_json({**described(run), "path": str(output)})
    else:
        size = output.stat().st_size / 2**20
        console = terminal()
        console.print(
            f"{output}: {run.origin.model} on {run.origin.device}, {len(run.ops)} calls of ops, {size:.1f} MiB"
        )
        for remark in [*run.remarks, *([f"it ended early: {run.error}"] if run.error else [])]:
            console.print(f"note: {remark}")
    raise typer.Exit(1 if run.error else 0)


def consistency(
    target: TargetArgument,
    device: Annotated[str, typer.Option(help="Vendor or device; cpu for the host.")] = "fl",
    backend: Annotated[
        str | None,
        typer.Option(help="Of torch.compile; without it the graph is run op by op, layer by layer."),
    ] = None,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model as it is trained and served: under inference_mode, compiled, exported, quantized; exits with 1 if they differ."""
    with errors_in_words():
        import flroute

        model, inputs = made_by(target, seed)
        found = flroute.consistency(model, inputs, device, seed=seed, backend=backend)
    _show(found, html, as_json=as_json)


def _show(found: Comparison | Consistency, html: Path | None, *, as_json: bool) -> NoReturn:
    if html is not None:
        found.to_html(html)
    if as_json:
        print_json(found.to_dict())
    else:
        terminal().print(found)
    raise typer.Exit(0 if found.passed else 1)


def _tolerance_said(text: str) -> tuple[str, tuple[float, float]]:
    pattern, _, numbers = text.rpartition("=")
    relative, _, absolute = numbers.partition(":")
    try:
        pair = float(relative), float(absolute or 0)
    except ValueError:
        fail(f"--tolerance {text!r}: write PATTERN=RTOL or PATTERN=RTOL:ATOL, as in 'aten::mm=1e-3:1e-5'")
    if not pattern or not (pair[0] >= 0 and pair[1] >= 0):
        fail(f"--tolerance {text!r}: write PATTERN=RTOL or PATTERN=RTOL:ATOL, with numbers from 0 on")
    return pattern, pair


def made_by(target: str, seed: int) -> tuple[Any, Any]:
    """The model and the inputs that a function gives, the same ones for the same seed."""
    from flroute.drift.compare.sides import seeded

    make = function_named(target)
    with seeded(seed):
        model, inputs = make()
    return model, inputs
