"""One session's alias: what cuda means in it, and which alias is in force."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flroute.cuda_alias.mode import CudaMode
from flroute.cuda_alias.ordinals import Ordinals
from flroute.cuda_alias.uses import Uses
from flroute.device import table
from flroute.device.table import Device


class Alias:
    """What cuda means in one session.

    Attributes:
        ordinals: which device each number is.
        uses: what was redirected.
        is_open: whether the session is.
    """

    def __init__(self, device: Device) -> None:
        self.ordinals = Ordinals(device)
        self.uses = Uses()
        self.is_open = False

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Have the calls of this thread hear of cuda."""
        mode = CudaMode(self)
        with mode:
            _thread.modes.append(mode)
            try:
                yield
            finally:
                _thread.modes.remove(mode)

    def run_inside(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """``run`` for a thread that is started in the session: its current device is the session's, as in the first thread."""

        def inside() -> Any:
            claim = table.push_current(self.ordinals.first.index)
            try:
                with self.in_this_thread():
                    return run()
            finally:
                table.pop_current(claim)

        return inside


class _Thread(threading.local):
    def __init__(self) -> None:
        self.modes: list[CudaMode] = []


_thread = _Thread()
_open: list[Alias] = []
_lock = threading.Lock()


def current() -> Alias:
    """The alias in force here: this thread's innermost, else the one that was opened last in the process."""
    mode = mode_here()
    return mode.alias if mode is not None else _open[-1]


def mode_here() -> CudaMode | None:
    """The innermost mode of this thread."""
    modes = _thread.modes
    return modes[-1] if modes and modes[-1].alias.is_open else None


def any_open() -> bool:
    """Whether cuda means the device anywhere in the process."""
    return bool(_open)


@contextmanager
def listed(alias: Alias) -> Iterator[None]:
    """Have ``alias`` found by threads without one of their own."""
    with _lock:
        _open.append(alias)
        alias.is_open = True
    try:
        yield
    finally:
        with _lock:
            _open.remove(alias)
            alias.is_open = False
