"""What a bisection says while it goes on, on stderr: how many runs there are to be, and a bar in a terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from flroute.report import counted


class Progress(AbstractContextManager["Progress"]):
    """Lines, and a bar that knows how many runs are to come.

    Args:
        what: is run.
        kept: runs that are done already.
        shown: whether to say anything.
    """

    def __init__(self, what: str, kept: int, *, shown: bool) -> None:
        self._what, self._kept = what, kept
        self._console = Console(stderr=True, quiet=not shown)
        self._bar = Bar(
            TextColumn("bisecting"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.description}"), console=self._console, transient=True,
            disable=not (shown and self._console.is_terminal),
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, completed=kept)

    def __enter__(self) -> Progress:  # noqa: PYI034 -- nobody makes a class of this one
        self._say(f"bisect runs {self._what}: 3 times to begin with, on the device, again and on the host")
        if self._kept:
            self._say(f"{counted(self._kept, 'run')} of an interrupted search are at hand")
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def plan(self, ops: int, best: int, worst: int, two: int) -> None:
        """Say how many runs there are to be in all, for one op at fault and for two."""
        self._say(
            f"{counted(ops, 'op')} computed by the device: if one of them is at fault, {best} to {worst} runs in all, "
            f"if two are, at most {two}"
        )
        self._bar.update(self._task, total=worst)

    def begins(self, asked: str) -> None:
        """A run begins."""
        where = {"device": "on the device", "device again": "on the device, again", "host": "on the host"}
        count = len(asked.removeprefix("only ").split())
        self._bar.update(self._task, description=where.get(asked, f"{counted(count, 'op')} on the host"))

    def advance(self, done: int) -> None:
        """A run has ended; the bar grows where there are more than was thought."""
        total = self._bar.tasks[self._task].total
        self._bar.update(self._task, completed=done, total=max(done + 1, total) if total else None)

    def _say(self, line: str) -> None:
        self._console.print(escape(line), highlight=False, soft_wrap=True)
