"""What the commands share: how they print, how they fail, and how they find a user's function."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from flroute.errors import FlrouteError

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def terminal() -> Console:
    """Where commands print; where there is no terminal, lines are kept whole enough for names."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def new_table(*columns: str) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_json(value: object) -> None:
    """For programs."""
    typer.echo(json.dumps(value, indent=1))


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print flroute's own errors: they say what to do next, and a traceback would bury that."""
    try:
        yield
    except FlrouteError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """End with exit code 2: the command could not do what it was asked for."""
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(2)


def function_named(target: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` or ``file.py:function`` names."""
    place, colon, name = target.rpartition(":")
    if not colon:
        fail(f"{target!r} names no function: write package.module:function or file.py:function")
    try:
        if place.endswith(".py"):
            found = runpy.run_path(place)[name]
        else:
            sys.path.insert(0, str(Path.cwd()))
            found = getattr(importlib.import_module(place), name)
    except (ImportError, OSError) as error:
        fail(f"{place} cannot be loaded: {error}")
    except (KeyError, AttributeError):
        fail(f"{place} has no function {name!r}")
    if not callable(found):
        fail(f"{target} is not a function")
    return found  # type: ignore[no-any-return]
