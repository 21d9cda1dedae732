"""``flroute run``: a script for cuda, as it is, on the device."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from flroute.commands import script
from flroute.commands.terminal import errors_in_words, fail

if TYPE_CHECKING:
    from flroute.session import Session


class RunCommand(TyperCommand):
    """What follows a script, or ``-m module``, is the script's, as for ``python``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """End our own options after ``-m module``, where click would go on."""
        takes_value = {
            name for option in self.params if not getattr(option, "is_flag", True) for name in option.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            module = args[at] in ("-m", "--module")
            at += 2 if args[at] in takes_value else 1
            if module:
                args = [*args[:at], "--", *args[at:]]
                break
        return super().parse_args(ctx, args)


CONTEXT = {"allow_interspersed_args": False}


def run(
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", help="A Python file, and its own arguments."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", help="Run a module in place of a file, as python -m does.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help='The device cuda means: "vendor", "vendor:1" or "fl:1".')
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An error where only the host could do the work.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="JSON file for the report, in place of stderr.")] = None,
    trace: Annotated[Path | None, typer.Option(help="JSONL file for each decision.")] = None,
    hide_cuda: Annotated[
        bool, typer.Option("--hide-cuda", help="Even if there is a real CUDA device.")
    ] = False,
) -> None:
    """Run a script that was written for cuda, unmodified: inside it, cuda is a device of flroute's.

    Its exit code and its traceback are the script's own. What was redirected, and what fell back, in it and in the processes that
    it started, is reported at the end.
    """
    arguments = list(target or [])
    if module is None and not arguments:
        fail("which script? flroute run script.py [args]..., or flroute run -m package.module [args]...")
    with errors_in_words():
        import flroute
        from flroute.child_reports import folder_for_reports
        from flroute.process_session import as_quiet_as_python

        wanted = script.Module(module) if module is not None else script.File(arguments.pop(0))
        wanted.check()
        session = flroute.enable(
            device,
            alias=("cuda",),
            fallback="error" if strict else None,
            hide_cuda=hide_cuda or None,
            trace=trace,
        )
        session.start()
    end = ExitStack()
    folder = end.enter_context(folder_for_reports())
    end.callback(_tell, session, report, folder)
    end.enter_context(as_quiet_as_python())
    end.enter_context(_for_children(session, folder))
    end.callback(session.close)
    atexit.register(
        end.close
    )  # before the script's own: its threads and its handlers come to their end with cuda
    raise SystemExit(script.run(wanted, arguments))


@contextmanager
def _for_children(session: Session, folder: Path) -> Iterator[None]:
    """Processes that the script starts open a session like this one when they import PyTorch; forked ones have this one."""
    from flroute.child_reports import ReportOfProcess

    settings = session.settings
    told = {
        "FLROUTE_SESSION": "1",
        "FLROUTE_REPORTS": str(folder),
        "FLROUTE_ALIAS": ",".join(settings.alias),
        "FLROUTE_FALLBACK": settings.fallback.value,
        "FLROUTE_DEVICE": session.device.vendor_device,
        "FLROUTE_HIDE_CUDA": "1" if settings.hide_cuda else "0",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    of_forked = ReportOfProcess(session, folder)
    try:
        yield
    finally:
        del of_forked
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _tell(session: Session, path: Path | None, folder: Path) -> None:
    from rich.console import Console

    from flroute.child_reports import with_children

    report = with_children(session.report(), folder)
    rank = os.environ.get("RANK")
    if path is None:
        console = Console(stderr=True)
        console = console if console.is_terminal else Console(stderr=True, width=160)
        console.print(f"flroute run on {session.device.vendor_device}" + (f", rank {rank}" if rank else ""))
        console.print(report)
        return
    if rank is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    try:
        report.to_json(path)
    except OSError as error:
        typer.secho(f"error: the report cannot be written: {error}", err=True, fg=typer.colors.RED)
