"""Reports of the processes that a script starts: each leaves its own in a folder, and they are added to the script's.

``flroute run`` names the folder in ``FLROUTE_REPORTS``. A process that was killed leaves its file empty, and one that has
nothing to say takes it away.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import util
from pathlib import Path

from flroute.report import Report, added_up
from flroute.routing.trace import read
from flroute.session import Session
from flroute.vocabulary import Decision, Redirected

_PATIENCE = 5.0
"""Seconds to wait for processes that nobody waits for."""

_LAST = -100
"""Priority among what a forked process does as it ends: after the processes that it started in turn."""


class ReportOfProcess:
    """What a process says of its session as it ends; those that are forked from it do likewise.

    Args:
        session: open in this process.
        folder: where to.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self._session, self._folder = session, folder
        self._path: Path | None = None
        util.register_after_fork(self, ReportOfProcess._begin_in_forked)

    def begin(self) -> None:
        """Make the file that tells of the process, should it never come to its end."""
        try:
            file, name = tempfile.mkstemp(".json", f"{os.getpid()}-", self._folder)
        except OSError:  # whoever would read it has ended
            return
        os.close(file)
        self._path = Path(name)

    def _begin_in_forked(self) -> None:
        self._session.count_anew()
        self.begin()
        util.Finalize(None, self.leave, exitpriority=_LAST)

    def leave(self) -> None:
        """Write the report, if there is anything in it."""
        if self._path is None or not self._path.exists():
            return
        report = self._session.report()
        if report.decisions or report.redirected:
            report.to_json(self._path.with_suffix(".part")).replace(self._path)  # whole, or not at all
        else:
            self._path.unlink()


@contextmanager
def folder_for_reports() -> Iterator[Path]:
    """A folder that is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="flroute-reports-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def with_children(report: Report, folder: Path) -> Report:
    """A report to which those in ``folder`` are added.

    Waits for processes that Python itself waits for at the end, and a little for others: they may be about to end, too.
    """
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()
    latest = time.monotonic() + _PATIENCE
    while time.monotonic() < latest and any(map(_is_under_way, folder.glob("*.json"))):
        time.sleep(0.05)
    decisions, redirected = [*report.decisions], [*report.redirected]
    reported = silent = 0
    for path in sorted(folder.glob("*.json")):
        if path.stat().st_size == 0:
            silent += 1
            continue
        reported += 1
        decisions += read(path).decisions
        redirected += [
            Redirected(**use) for use in json.loads(path.read_text(encoding="utf-8"))["redirected"]
        ]
    return report.of_processes(
        added_up(decisions, _but_for_counts), _uses_added_up(redirected), reported=reported, silent=silent
    )


def _is_under_way(path: Path) -> bool:
    """Whether the process that left a file empty may still fill it."""
    try:
        if path.stat().st_size:
            return False
        os.kill(int(path.name.partition("-")[0]), 0)  # asks whether it is there
    except OSError:
        return False
    return True


def _but_for_counts(decision: Decision) -> Decision:
    return replace(decision, calls=0, seconds=None, bytes_to_host=0, bytes_to_device=0)


def _uses_added_up(uses: Sequence[Redirected]) -> list[Redirected]:
    calls: Counter[tuple[str, str]] = Counter()
    for use in uses:
        calls[use.name, use.site] += use.calls
    return [Redirected(*key, count) for key, count in sorted(calls.items())]
