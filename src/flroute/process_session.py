"""``FLROUTE_SESSION=1``: a session for a whole process, which nothing in its code opens.

``flroute run`` sets it for the processes that a script starts, and ``FLROUTE_REPORTS``, where they leave their reports.
"""

from __future__ import annotations

import atexit
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flroute.child_reports import ReportOfProcess
from flroute.errors import FlrouteError
from flroute.session import enable
from flroute.settings import load_settings


def open_if_asked() -> None:
    """Open one that ends with the process; where that fails, a warning says why, for importing PyTorch does not fail for it."""
    try:
        settings = load_settings()
        if not settings.session:
            return
        session = enable().start()
    except FlrouteError as error:
        warnings.warn(f"FLROUTE_SESSION=1 opened no session: {error}", RuntimeWarning, stacklevel=2)
        return
    end = ExitStack()
    if settings.reports is not None:
        report = ReportOfProcess(session, Path(settings.reports))
        report.begin()
        end.callback(report.leave)
    end.enter_context(as_quiet_as_python())
    end.callback(session.close)
    atexit.register(end.close)


@contextmanager
def as_quiet_as_python() -> Iterator[None]:
    """A script that has logging show it what is of level info means its own: each route would be a line among these."""
    logger = logging.getLogger("flroute")
    before = logger.level
    if before == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
