"""Threads that run pieces of a launch, in compiled code: none of them ever waits for the interpreter's lock.

A launch is offered on a *ticket*: a number that changes with every launch, and how many seats are left. A thread that takes
a seat works along, piece by piece; the launching thread works too, then closes the ticket and waits for those alone who took
a seat. A thread that wakes late finds the ticket closed: it holds nobody up, and touches nothing.

Threads look for the next ticket for some microseconds, since launches often follow each other, and then sleep. One launch
has the team at a time; what is launched meanwhile from other threads runs in those.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from flroute.reference_vendor.triton_cpu.object_code import LOCK, machine
from flroute.reference_vendor.triton_cpu.team_code import NAMES, SIZE, team_code


@cache
def _engine() -> Any:
    """The code in memory, for ever: threads run in it until the process ends, after Python's own end."""
    with LOCK:
        target = machine()
        module = llvm.parse_assembly(team_code())
        module.verify()
        module.triple, module.data_layout = llvm.get_default_triple(), str(target.target_data)
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine


def _function(name: str) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_engine().get_function_address(name))


class Team:
    """Threads, and the memory by which they know of each other; neither is ever given back."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(SIZE + 64)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self.members = 0
        _function("make")(self.address)

    def grow(self, members: int) -> None:
        """Start threads until there are that many."""
        for _ in range(self.members, members):
            work, place = _function("member"), self.address
            threading.Thread(target=work, args=(place,), name="triton-cpu", daemon=True).start()
            self.members += 1

    def field(self, name: str) -> int:
        """What one of the numbers of the team's memory is now."""
        return ctypes.c_int64.from_address(self.address + 8 * NAMES.index(name)).value


_making = threading.Lock()
_team: Team | None = None


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _team
    _team = None
    _making.release()


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_forget)


def team_of(threads: int) -> Team:
    """This process's team, of which ``threads - 1`` and the caller can work together."""
    global _team
    if _team is None or _team.members < threads - 1:
        with _making:
            _team = _team or Team()
            _team.grow(threads - 1)
    return _team
