"""``flroute bridge``: the small module that a project keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flroute.commands.terminal import fail


def bridge(
    path: Annotated[
        Path, typer.Argument(help="File to write, or a folder: bridge.py in it.", show_default="bridge.py")
    ] = Path(),
    write: Annotated[bool, typer.Option("--write", help="Write the file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over another file.")] = False,
) -> None:
    """Show the module that lets a project run with flroute and without it, or write it into the project."""
    import flroute

    source = (Path(flroute.__file__).parent / "bridge.py").read_text(encoding="utf-8")
    if not write:
        typer.echo(source, nl=False)
        return
    target = path / "bridge.py" if path.is_dir() else path
    try:
        wrote = _write(target, source, force=force)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}")
    typer.echo(f"{'wrote' if wrote else 'nothing to do, this is already'} {target}")
    if wrote:
        lines = len(source.splitlines())
        typer.echo(
            f"{lines} lines: resolve_device, to_device, load_model, autocast and process_group_backend.\n"
            f"They use flroute's device where flroute is installed, else cuda, mps or the host."
        )


def _write(target: Path, source: str, *, force: bool) -> bool:
    """Whether there was anything to write."""
    if target.exists():
        if target.read_text(encoding="utf-8", errors="replace") == source:
            return False
        if not force:
            fail(
                f"{target} is there already, with other text. Give another path, or --force to write over it."
            )
    target.write_text(source, encoding="utf-8")
    return True
