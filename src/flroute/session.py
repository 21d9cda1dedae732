"""Sessions: ``enable`` puts a device, a policy and a decision log in force, and undoes all of it on every exit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache
from types import TracebackType
from typing import Any

import torch

from flroute import activation, lockfile, registry
from flroute.device import guard, table
from flroute.device.tensors import is_on_device
from flroute.errors import DeviceError, FlrouteError
from flroute.policy_check import refuse_unknown_ops
from flroute.report import Report
from flroute.routing import node_modules
from flroute.routing.accounting import DecisionLog
from flroute.routing.capture import Capture
from flroute.routing.router import Router
from flroute.routing.trace import Trace
from flroute.settings import Origin, Settings, changed, explain_settings, load_settings
from flroute.tables import html_lines, html_part
from flroute.torch_compat import (
    DefaultDevice,
    TorchDispatchMode,
    dispatch_stack_length,
    increment_versions,
    is_overload,
    on_top_of_dispatch_stack,
    outside_dispatch_modes,
    skip_in_dynamo,
    wrap_backward,
)
from flroute.vocabulary import Decision, FallbackPolicy, Route

_open: list[Session] = []
"""Sessions open anywhere in the process, innermost last: threads without one of their own take the last one's policy."""

_captures: list[Capture] = []
_lock = threading.Lock()
_default: Router | None = None


class _Thread(threading.local):
    def __init__(self) -> None:
        self.modes: list[RoutingMode] = []
        self.sessions: list[Session] = []


_thread = _Thread()


def router_in_force() -> Router:
    """The router for calls in this thread: its own session's, else that of the innermost open one, else the process's."""
    modes = _thread.modes
    if modes:
        return modes[-1].router
    try:
        return _open[-1].router
    except IndexError:
        return process_router()


def process_router() -> Router:
    """The router outside sessions: settings from the environment and files."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = _make_router(load_settings())
    return _default


def _forget_routes() -> None:
    for session in _open:
        session.router.invalidate()
    if _default is not None:
        _default.invalidate()


registry.on_change(_forget_routes)


def _make_router(settings: Settings) -> Router:
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


class RoutingMode(TorchDispatchMode):
    """Sees every aten call of one thread first, and hands it to the session's router."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else ``torch.compile`` inside a session would silently run eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not wrap ``__torch_dispatch__``: the wrapper imports Dynamo and costs a third of a call; see below the class."""
        return False

    def __init__(self, router: Router) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.router = router
        self._handlers: dict[Any, Any] = router.mode_table
        self._depth = 0  # modes beneath us on the stack
        self._beneath = -1  # the same while we route

    def __enter__(self) -> RoutingMode:  # noqa: PYI034 -- typing.Self needs Python 3.11
        self._depth = dispatch_stack_length()
        super().__enter__()  # type: ignore[no-untyped-call]
        _thread.modes.append(self)
        _let_innermost_route(_thread.modes)
        return self

    def __exit__(self, *exc: object) -> None:
        modes = _thread.modes
        at = modes.index(self)
        del modes[at]
        self._beneath = -1  # whoever holds the stack while we leave it may put us back
        for inner in modes[at:]:  # opened after us, and still open
            inner._depth -= 1
        _let_innermost_route(modes)
        with on_top_of_dispatch_stack(self):
            super().__exit__(*exc)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Other subclasses (fake, functional, ...) are not ours; nor is a call under an infrastructure mode, which sits
        # beneath us on the stack and must see factories before they allocate.
        if types or dispatch_stack_length() != self._beneath:
            return func(*args, **(kwargs or {}))
        handler = self._handlers.get(func)
        if handler is None:
            handler = self._handlers[func] = self._handler(func)
        return handler(args, kwargs)

    def _handler(self, func: Any) -> Any:
        if not is_overload(func) or func.namespace != "aten":
            return lambda args, kwargs: func(*args, **kwargs)
        handler = self.router.handler(func)
        if self.router.bumps_no_version(func):
            return lambda args, kwargs: increment_versions(args[0], handler(args, kwargs))
        return handler


skip_in_dynamo(RoutingMode.__torch_dispatch__)


def _let_innermost_route(modes: list[RoutingMode]) -> None:
    """Of one thread's sessions the innermost routes, the others pass each call on.

    So does it where modes of the user's are beneath it: they want to see calls on the device, too, and the kernels
    registered with PyTorch route these.
    """
    for at, mode in enumerate(modes):
        routes = at == len(modes) - 1 and mode._depth == at
        mode._beneath = mode._depth if routes else -1


class Session(ContextDecorator, AbstractContextManager["Session"]):
    """What ``enable`` returns: a context manager and decorator, and the record of what happened inside."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = resolve_device(settings.device)
        self.router = _make_router(settings)
        self._stack: ExitStack | None = None
        self._opened_in: threading.Thread | None = None

    def _recreate_cm(self) -> Session:
        """As a decorator, each call is a session of its own."""
        return Session(self.settings)

    def __enter__(self) -> Session:  # noqa: PYI034 -- as above
        if self._stack is not None:
            raise FlrouteError(
                "this session is already open; nest another one: flroute.enable(...) inside it"
            )
        with ExitStack() as stack:
            stack.enter_context(self._listed())
            for scope in registry.load().manager.hook.flroute_session(device=self.device.vendor_device):
                stack.enter_context(scope)
            stack.enter_context(_modules_told(self.settings))
            stack.enter_context(self._in_this_thread())
            self._stack = stack.pop_all()
        self._opened_in = threading.current_thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is None:
            return
        if self._opened_in is not threading.current_thread():
            raise FlrouteError(
                f"this session was opened in the thread {self._opened_in.name!r} and is in force there: close it there. "  # type: ignore[union-attr]
                f"Another thread joins it with `with session.attach():`"
            )
        stack, self._stack = self._stack, None
        stack.__exit__(kind, error, trace)

    def start(self) -> Session:
        """Open the session without a ``with`` block, for the cells of a whole notebook; ``close`` ends it.

        Raises:
            FlrouteError: it is open already.

        Example:
            >>> import flroute, torch
            >>> session = flroute.enable(device="reference").start()
            >>> torch.ones(2).device
            device(type='fl', index=0)
            >>> session.close()
            >>> torch.ones(2).device
            device(type='cpu')
        """
        return self.__enter__()

    def close(self) -> None:
        """Close the session in the thread that opened it; does nothing if it is closed.

        Raises:
            FlrouteError: another thread opened it.
        """
        self.__exit__(None, None, None)

    @contextmanager
    def _listed(self) -> Iterator[None]:
        sessions = _thread.sessions
        with _lock:
            _open.append(self)
            sessions.append(self)
            for capture in _captures:
                capture.watch(self.router)
        try:
            yield
        finally:
            with _lock:
                _open.remove(self)
                at = sessions.index(self)
                del sessions[at]
            self.router.log.close()
            if at:
                sessions[at - 1].router.log.absorb(self.router.log)

    @contextmanager
    def _in_this_thread(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_current(self.device.index))
            stack.enter_context(RoutingMode(self.router))
            if self.settings.default_device:
                stack.enter_context(DefaultDevice(self.device.torch_device))
            yield

    def attach(self) -> AbstractContextManager[None]:
        """A context that gives another thread the whole session: its mode, default device and policy.

        Raises:
            FlrouteError: the session is not open.

        Example:
            >>> import flroute, threading, torch
            >>> with flroute.enable(device="reference") as session:
            ...     def work():
            ...         with session.attach():
            ...             print(torch.ones(2).device)
            ...     thread = threading.Thread(target=work)
            ...     thread.start()
            ...     thread.join()
            fl:0
        """
        self._check_open()
        return self._attached()

    @contextmanager
    def _attached(self) -> Iterator[None]:
        self._check_open()
        with self._in_this_thread():
            yield

    def _check_open(self) -> None:
        if self._stack is None:
            raise FlrouteError(
                "attach() needs an open session: call it inside `with flroute.enable(...) as session:`"
            )

    @contextmanager
    def change(self, **settings: Any) -> Iterator[None]:
        """Other settings for this session while open, in all its threads; the next call is routed by them.

        Args:
            settings: ``fallback``, ``precision``, ``fast_fallback``, ``order``, ``rules``, ``allow`` or ``deny``, as for
                ``enable``. An order and rules come before those in force, the others replace theirs.

        Raises:
            SettingsError: another setting, a value it does not take, or a rule for an op that this PyTorch lacks.

        Example:
            >>> import flroute, torch
            >>> with flroute.enable(device="reference") as session:
            ...     with session.change(deny=["reference/*"], fallback="allow"):
            ...         y = torch.ones(2).exp()
            >>> [(d.op, d.rejected[0].detail) for d in session.fallbacks if d.op == "aten::exp"]
            [('aten::exp', "denied by 'reference/*'")]
        """
        router, before = self.router, self.router.settings
        new = changed(before, settings)
        ours = dict.fromkeys(new.order, "argument")
        refuse_unknown_ops(
            {"order": Origin(new.order, "argument", ours), "rules": Origin(new.rules, "argument")}
        )
        self._put_in_force(new)
        try:
            with _modules_told(new):
                yield
        finally:  # a capture that came or went meanwhile decides about watching
            self._put_in_force(replace(before, watch_kernels=router.settings.watch_kernels))

    def _put_in_force(self, settings: Settings) -> None:
        self.router.settings = settings
        self.router.log.warn_on_fallback = settings.fallback is FallbackPolicy.WARN
        self.router.invalidate()

    @property
    def decisions(self) -> list[Decision]:
        """Every decision so far, in the order first taken."""
        return self.router.log.decisions()

    @property
    def fallbacks(self) -> list[Decision]:
        """Decisions whose route is ``fallback``."""
        return [decision for decision in self.decisions if decision.route is Route.FALLBACK]

    def report(self) -> Report:
        """The decisions as a table, with totals."""
        return Report(
            self.decisions,
            device=self.device.name,
            settings=asdict(self.settings),
            trace_path=self.settings.trace,
            lost_records=self.router.log.lost_records,
        )

    def __repr__(self) -> str:
        return f"<{self._in_words()}>"

    def _repr_html_(self) -> str:
        """For a notebook: whether it is open, and its report so far."""
        return html_part(html_lines([self._in_words()]), self.report().html())

    def _in_words(self) -> str:
        state = "closed" if self._stack is None else "open"
        return f"flroute session on {self.device.name} ({self.device.vendor_device}), {state}, fallback={self.settings.fallback}"


def _modules_told(settings: Settings) -> AbstractContextManager[None]:
    """Where somebody asks for modules, a backward pass can tell them, too."""
    asked = settings.modules or any(rule.module is not None for rule in settings.rules)
    return node_modules.marked() if asked else nullcontext()


def enable(device: str | torch.device | None = None, **settings: Any) -> Session:
    """Route every op on a vendor's device, inside a ``with`` block or a decorated function.

    Args:
        device: ``"vendor"``, ``"vendor:1"``, ``"fl:1"`` or a ``torch.device``; the default vendor's first device if absent.
        settings: ``fallback="warn" | "allow" | "error"``, ``default_device``, ``precision``, ``order``, ``rules``, ``allow``,
            ``deny``, ``fast_fallback``, ``trace``, ``timing``, ``modules``, ``debug``, ``locked``; see
            ``flroute.settings.Settings``. Arguments win over ``FLROUTE_*`` variables, these over ``flroute.toml`` and
            ``[tool.flroute]``.

    Returns:
        A session, to be opened with ``with``.

    Raises:
        UnknownVendorError: no such vendor; the message lists those there are.
        DeviceError: no such device.
        SettingsError: an unknown setting or value, contradictory rules, or a rule for an op that this PyTorch lacks.
        LockError: with ``locked=True``, this environment is not the one in ``flroute.lock``.

    Example:
        >>> import flroute, torch
        >>> with flroute.enable(device="reference", fallback="error") as session:
        ...     x = torch.ones(4, 4)
        ...     y = torch.relu(x @ x)
        >>> y.device
        device(type='fl', index=0)
        >>> session.fallbacks
        []
    """
    if device is not None:
        settings["device"] = str(device)
    activation.activate()
    if not guard.installed():
        _lift_modes_in_backward()
    origins = explain_settings(**settings)
    refuse_unknown_ops(origins)
    return Session(Settings(**{name: origin.value for name, origin in origins.items()}))


@contextmanager
def capture(*, watch_kernels: bool) -> Iterator[Capture]:
    """Collect the decisions of every thread and session while open, and of calls outside sessions.

    What is counted goes to sessions and reports, too. See ``flroute.testing.capture_decisions``.
    """
    outside = process_router()
    with _lock:
        made = Capture([outside, *(session.router for session in _open)], watch_kernels=watch_kernels)
        _captures.append(made)
    try:
        yield made
    finally:
        made.close()
        with _lock:
            _captures.remove(made)
            if not _captures:
                for router in (outside, *(session.router for session in _open)):
                    router.log.forget_pages()


def resolve_device(name: str | None) -> table.Device:
    """The device that ``"vendor"``, ``"vendor:1"``, ``"fl"`` or ``"fl:1"`` means.

    Raises:
        UnknownVendorError: no such vendor.
        DeviceError: no such device.
    """
    if name is None:
        name = load_settings().default_vendor
    kind, colon, number = name.partition(":")
    if colon and not number.isdigit():
        raise DeviceError(f"device {name!r}: after the colon comes a number, as in '{kind}:0'")
    if kind == table.DEVICE_TYPE:
        return table.device_at(int(number) if number else table.current_index())
    registry.load().vendor(kind)
    of_vendor = [device for device in table.devices() if device.vendor == kind]
    if int(number or 0) >= len(of_vendor):
        there = ", ".join(device.vendor_device for device in of_vendor)
        raise DeviceError(f"vendor {kind!r} has no device {number}; it has: {there}")
    return of_vendor[int(number or 0)]


@contextmanager
def _current(index: int) -> Iterator[None]:
    claim = table.push_current(index)
    try:
        yield
    finally:
        table.pop_current(claim)


@cache
def _lift_modes_in_backward() -> None:
    """Where PyTorch's device guard could not be patched: no dispatch mode is active while autograd runs over the device.

    An error that leaves a mode inside the autograd engine would end the process (device/guard.py); one that leaves a
    kernel registered with PyTorch does not, and there the same router decides. A pass that starts on the host, with no
    session in this thread, is the host's own: the user's modes see it.
    """

    def around(roots: Any) -> AbstractContextManager[Any]:
        of_host = all(isinstance(root, torch.Tensor) and not is_on_device(root) for root in roots)
        return nullcontext() if of_host and not _thread.modes else outside_dispatch_modes()

    wrap_backward(around)
