"""Which router routes a call: its thread's session's, that of the session opened last, or the process's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flroute import lockfile, registry
from flroute.routing import recording
from flroute.routing.accounting import DecisionLog
from flroute.routing.capture import Capture
from flroute.routing.router import Router
from flroute.routing.trace import Trace
from flroute.routing_mode import innermost_router
from flroute.settings import Settings, load_settings
from flroute.vocabulary import Decision, FallbackPolicy

_open: list[Router] = []
"""Of the sessions open anywhere in the process, innermost last: threads without one of their own take the last one's policy."""

_captures: list[Capture] = []
_lock = threading.Lock()
_default: Router | None = None


def make_router(settings: Settings) -> Router:
    """A router, with an empty log.

    Raises:
        LockError: the settings say ``locked``, and this environment is not the one in ``flroute.lock``.
    """
    if settings.locked:
        lockfile.verify()

    def observe(decision: Decision) -> None:
        registry.load().manager.hook.flroute_decision_taken(decision=decision)

    log = DecisionLog(
        warn_on_fallback=settings.fallback is FallbackPolicy.WARN,
        trace=Trace(settings.trace, settings.trace_max_bytes) if settings.trace is not None else None,
        by_module=settings.modules,
        observer=observe,
    )
    return Router(settings, log)


def router_in_force() -> Router:
    """The router for calls in this thread: its own session's, else that of the innermost open one, else the process's."""
    here = innermost_router()
    if here is not None:
        return here
    try:
        return _open[-1]
    except IndexError:
        return process_router()


def process_router() -> Router:
    """The router outside sessions: settings from the environment and files."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = make_router(load_settings())
    return _default


def routers_in_use() -> list[Router]:
    """The process's, and those of all open sessions."""
    return [process_router(), *_open]


@contextmanager
def listed(router: Router) -> Iterator[None]:
    """Have a session's router found by threads without a session, and by captures and recordings."""
    with _lock:
        _open.append(router)
        for capture_ in _captures:
            capture_.watch(router)
        recording.watch(router)
    try:
        yield
    finally:
        with _lock:
            _open.remove(router)


@contextmanager
def capture(*, watch_kernels: bool) -> Iterator[Capture]:
    """Collect the decisions of every thread and session while open, and of calls outside sessions.

    What is counted goes to sessions and reports, too. See ``flroute.testing.capture_decisions``.
    """
    outside = process_router()
    with _lock:
        made = Capture([outside, *_open], watch_kernels=watch_kernels)
        _captures.append(made)
    try:
        yield made
    finally:
        made.close()
        with _lock:
            _captures.remove(made)
            if not _captures:
                for router in (outside, *_open):
                    router.log.forget_pages()


def _forget_routes() -> None:
    for router in _open:
        router.invalidate()
    if _default is not None:
        _default.invalidate()


registry.on_change(_forget_routes)
