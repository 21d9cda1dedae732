"""What was redirected, and from where."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from types import FrameType

from flroute.cuda_alias.callers import user_frame
from flroute.vocabulary import Redirected


class Uses:
    """Counts redirected uses by name and call site."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def add(self, name: str, frame: FrameType) -> None:
        """One more use of ``name``, by the innermost frame of the user's from ``frame`` on."""
        frame = user_frame(frame)
        with self._lock:
            self._counts[name, frame.f_code.co_filename, frame.f_lineno] += 1

    def count_anew(self) -> None:
        """Forget them, in a forked process: of its threads there is this one."""
        self._lock = threading.Lock()
        self._counts.clear()

    def say_once(self, name: str, what: str) -> None:
        """Log what became of a use that has no effect, the first time."""
        with self._lock:
            if name in self._said:
                return
            self._said.add(name)
        logging.getLogger("flroute").info("%s: %s", name, what)

    def rows(self) -> list[Redirected]:
        """What was counted, by name and then by line."""
        with self._lock:
            counted = sorted(self._counts.items())
        return [Redirected(name, f"{file}:{line}", calls) for (name, file, line), calls in counted]
