"""The scope in which Triton sees this CPU.

Triton asks one process-wide object for its one active driver. Inside ``active()``, and in that thread alone, the answer is
this CPU's; outside, and for every other thread, it is what it always was, so that a GPU's kernels never notice. The same
holds for where Triton keeps compiled kernels, and for the key that it keeps them under.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import backends
from triton.backends.driver import DriverBase
from triton.runtime import cache as triton_cache
from triton.runtime.cache import FileCacheManager, triton_key
from triton.runtime.driver import DriverConfig
from triton.runtime.driver import driver as triton_drivers

from flroute.reference_vendor.triton_cpu.backend import BACKEND, Backend
from flroute.reference_vendor.triton_cpu.driver import Driver
from flroute.reference_vendor.triton_cpu.kept_files import KeptFiles
from flroute.reference_vendor.triton_cpu.object_code import triton_version

_SCOPE = threading.local()
_LOCK = threading.Lock()
_DRIVER = Driver()
_open = 0  # scopes, of all threads


def _forget_other_threads() -> None:
    """A forked child has only the thread that forked, and that one's scopes."""
    others = _open - _depth()
    _LOCK.release()
    for _ in range(others):
        _leave()


os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget_other_threads)


def _depth() -> int:
    """How many scopes this thread is in."""
    return getattr(_SCOPE, "depth", 0)


def is_active() -> bool:
    """Whether this thread is inside ``active()``."""
    return _depth() > 0


class _ScopedDrivers(DriverConfig):  # type: ignore[misc]
    """Triton's own registry of drivers, but for threads inside ``active()``."""

    @property
    def active(self) -> DriverBase:
        return _DRIVER if is_active() else super().active


class _ScopedFiles(FileCacheManager):  # type: ignore[misc]
    """Triton's own files of compiled kernels, but for threads inside ``active()``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is _ScopedFiles and is_active():
            return KeptFiles(*args, **kwargs)
        return super().__new__(cls)


def _scoped_key() -> str:
    """Part of the key of a compiled kernel: Triton's own has read its shared library, half a gigabyte."""
    return triton_version() if is_active() else triton_key()


@contextmanager
def active() -> Iterator[None]:
    """In this thread, Triton compiles for and launches on this CPU. Scopes nest.

    Raises:
        VersionError: when it is imported: the installed Triton is not a supported version.

    Example:
        >>> import torch
        >>> from flroute.reference_vendor.triton_cpu.samples import negate
        >>> x = torch.ones(3)
        >>> with active():
        ...     _ = negate[(1,)](x, 3, BLOCK=16)
        >>> x
        tensor([-1., -1., -1.])
    """
    _enter()
    _SCOPE.depth = _depth() + 1
    try:
        yield
    finally:
        _SCOPE.depth -= 1
        _leave()


def _enter() -> None:
    global _open
    with _LOCK:
        _open += 1
        if _open == 1:
            backends.backends[BACKEND] = backends.Backend(compiler=Backend, driver=Driver)
            triton_drivers.__class__ = _ScopedDrivers
            triton_cache.FileCacheManager, triton_cache.triton_key = _ScopedFiles, _scoped_key


def _leave() -> None:
    global _open
    with _LOCK:
        _open -= 1
        if _open == 0:
            triton_cache.FileCacheManager, triton_cache.triton_key = FileCacheManager, triton_key
            triton_drivers.__class__ = DriverConfig
            del backends.backends[BACKEND]
