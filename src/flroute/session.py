"""Sessions: ``enable`` puts a device, a policy and a decision log in force, and undoes all of it on every exit."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from flroute import activation, registry
from flroute.device import guard, table
from flroute.device_names import resolve_device
from flroute.errors import FlrouteError
from flroute.policy_check import refuse_unknown_ops
from flroute.profile import Profile
from flroute.report import Report
from flroute.routers import listed, make_router
from flroute.routing import node_modules, recording
from flroute.routing.host_times import HostTimes
from flroute.routing.module_ranges import module_ranges
from flroute.routing_mode import RoutingMode, lift_modes_in_backward
from flroute.settings import Origin, Settings, changed, explain_settings
from flroute.tables import html_lines, html_part
from flroute.torch_compat import DefaultDevice
from flroute.vocabulary import Decision, FallbackPolicy, Redirected, Route

if TYPE_CHECKING:
    from flroute.cuda_alias import Alias


class _Thread(threading.local):
    def __init__(self) -> None:
        self.sessions: list[Session] = []


_thread = _Thread()


class Session(ContextDecorator, AbstractContextManager["Session"]):
    """What ``enable`` returns: a context manager and decorator, and the record of what happened inside."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = resolve_device(settings.device)
        self.router = make_router(settings)
        # Routes hold the router that has them in its table: without this they would all wait for a garbage collection.
        weakref.finalize(self, self.router.invalidate).atexit = False
        self._stack: ExitStack | None = None
        self._alias: Alias | None = None
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
            if self.settings.alias:
                from flroute.cuda_alias import opened

                self._alias = stack.enter_context(opened(self.device, hide_cuda=self.settings.hide_cuda))
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
        sessions.append(self)
        try:
            with listed(self.router):
                yield
        finally:
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
            if self._alias is not None:
                stack.enter_context(self._alias.in_this_thread())
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
        self._check_open("attach")
        return self._attached()

    @contextmanager
    def _attached(self) -> Iterator[None]:
        self._check_open("attach")
        with self._in_this_thread():
            yield

    def _check_open(self, asked: str) -> None:
        if self._stack is None:
            raise FlrouteError(
                f"{asked}() needs an open session: call it inside `with flroute.enable(...) as session:`"
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

    def count_anew(self) -> None:
        """Forget what was counted: in a forked process, that of the one it was forked from."""
        self.router.log.count_anew()
        self.router.invalidate()
        if self._alias is not None:
            self._alias.uses.count_anew()

    @property
    def decisions(self) -> list[Decision]:
        """Every decision so far, in the order first taken."""
        return self.router.log.decisions()

    @property
    def fallbacks(self) -> list[Decision]:
        """Decisions whose route is ``fallback``."""
        return [decision for decision in self.decisions if decision.route is Route.FALLBACK]

    @property
    def redirected(self) -> list[Redirected]:
        """What named cuda and reached the device, with ``alias=("cuda",)``: each name and line, and how often."""
        return [] if self._alias is None else self._alias.uses.rows()

    def report(self) -> Report:
        """The decisions as a table, with totals."""
        return Report(
            self.decisions,
            device=self.device.name,
            settings=asdict(self.settings),
            trace_path=self.settings.trace,
            lost_records=self.router.log.lost_records,
            redirected=self.redirected,
        )

    @contextmanager
    def profile(
        self, *, against_host: bool = False, slower_than: float = 3.0, modules: bool = False
    ) -> Iterator[Profile]:
        """Time each kernel, copy and host fallback inside, in all threads of this session and of those opened meanwhile.

        Outside of a profile calls pay nothing for it, inside about two microseconds each.

        Args:
            against_host: also time the host, on copies of the arguments, before the first call of each signature, to flag ops
                that take far longer on the device. Nothing is written or drawn, but the block takes longer.
            slower_than: flagged are ops that take more than so many times the host's time.
            modules: also record when each module was under way, for ``to_chrome_trace``.

        Yields:
            A profile, which fills while the block runs.

        Raises:
            FlrouteError: the session is not open.

        Example:
            >>> import flroute, torch
            >>> with flroute.enable(device="reference") as session:
            ...     x = torch.ones(4, 4)
            ...     with session.profile() as profile:
            ...         y = torch.relu(x @ x)
            >>> sorted((row.op, row.kernel, row.calls) for row in profile.rows())
            [('aten::mm', 'reference/numpy:mm', 1), ('aten::relu', 'reference/numpy:relu', 1)]
        """
        self._check_open("profile")
        times = HostTimes() if against_host else None
        found = Profile(times, slower_than)
        with ExitStack() as stack:
            found.fill_from(stack.enter_context(recording.record(lambda: [self.router], times)))
            if modules:
                stack.enter_context(module_ranges(found.enter_module))
            yield found

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
            ``deny``, ``fast_fallback``, ``trace``, ``timing``, ``modules``, ``debug``, ``locked``, ``alias``, ``hide_cuda``; see
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
        lift_modes_in_backward()
    origins = explain_settings(**settings)
    refuse_unknown_ops(origins)
    if "alias" in origins:  # scripts for cuda say where a tensor goes, and keep others on the host
        origins.setdefault("default_device", Origin(False, "alias"))
    return Session(Settings(**{name: origin.value for name, origin in origins.items()}))


@contextmanager
def _current(index: int) -> Iterator[None]:
    claim = table.push_current(index)
    try:
        yield
    finally:
        table.pop_current(claim)
