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
from flroute.errors import AliasError
from flroute.torch_compat import default_device_kept, not_traced


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
    def listed(self) -> Iterator[None]:
        """Be found by threads without an alias of their own, until the end of the session."""
        with _lock:
            _open.append(self)
            self.is_open = True
        try:
            yield
        finally:
            with _lock:
                _open.remove(self)
                self.is_open = False

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """Have the calls of this thread hear of cuda."""
        mode = CudaMode(self)
        modes = _thread.modes
        with default_device_kept(), mode:
            modes.append(mode)
            _let_innermost_answer(modes)
            try:
                yield
            finally:
                modes.remove(mode)
                _let_innermost_answer(modes)

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


def _let_innermost_answer(modes: list[CudaMode]) -> None:
    """Of sessions that are nested in one thread; the others pass calls on."""
    for mode in modes:
        mode.answers = mode is modes[-1]


_open: list[Alias] = []
_lock = threading.Lock()


def current() -> Alias:
    """The alias in force here: this thread's innermost, else the one that was opened last in the process.

    Raises:
        AliasError: none is.
    """
    mode = mode_here()
    if mode is not None:
        return mode.alias
    try:
        return _open[-1]
    except IndexError:
        raise AliasError(
            "cuda means a device while a session with alias=('cuda',) is open: none is"
        ) from None


def mode_here() -> CudaMode | None:
    """The innermost mode of this thread."""
    modes = _thread.modes
    return modes[-1] if modes and modes[-1].alias.is_open else None


def any_open() -> bool:
    """Whether cuda means the device anywhere in the process."""
    return bool(_open)


def meaning() -> tuple[int, ...]:
    """What cuda means in this thread, in short: the index of the current device, then that of each number; ``()`` for nothing."""
    mode = mode_here()
    if mode is None:
        return ()
    return (table.current_index(), *(device.index for device in mode.alias.ordinals.devices))


not_traced(meaning)
