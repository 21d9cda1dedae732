"""The router: finds the route of each call once per signature, and runs it.

``Router`` maps an op to a handler, made on first use. A handler keeps plans by the dtypes and devices of the tensor
arguments; a plan is a plain callable with the decision's counter inside it. A change of policy or of the registry
empties the table, so it is seen at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from flroute.device import rng
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.errors import DeviceError, FallbackError, Unsupported, VendorError
from flroute.kernels import Kernel
from flroute.registry import Registry, load
from flroute.routing import hot_path, transfers
from flroute.routing.accounting import DecisionLog, Tally
from flroute.routing.fallback import HostCall
from flroute.routing.hot_path import HotPath
from flroute.routing.native import Invocation
from flroute.routing.schema import OpFacts, bind, facts_of, tensors_in
from flroute.routing.views import view_call
from flroute.settings import Settings
from flroute.torch_compat import run_composite
from flroute.vocabulary import FallbackPolicy, Reason, Rejection, Route

aten = torch.ops.aten

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Router:
    """Routes calls under one set of settings, and accounts for them in one log."""

    def __init__(self, settings: Settings, log: DecisionLog) -> None:
        self.settings, self.log = settings, log
        self.table: dict[Any, Plan] = {}
        self.mode_table: dict[Any, Plan] = {}

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call of ``op``."""
        handler = self.table.get(op)
        if handler is None:
            handler = self.handler(op)
        return handler(args, kwargs)

    def handler(self, op: Any) -> Plan:
        """The handler of ``op``, made on first use."""
        handler = self.table.get(op)
        if handler is None:
            handler = self.table[op] = self._make_handler(facts_of(op))
        return handler

    def invalidate(self) -> None:
        """Forget every resolved route: the settings or the registry changed."""
        self.table.clear()
        self.mode_table.clear()

    def bumps_no_version(self, op: Any) -> bool:
        """Whether a dispatch mode must bump the version counters that ``op`` writes."""
        return facts_of(op).bumps_no_version

    def _make_handler(self, facts: OpFacts) -> Plan:
        special = _DEVICE_OPS.get(facts.name)
        if special is not None:
            return special(self, facts)
        if facts.is_metadata:
            return _view_handler(self, facts)
        handler = ComputeHandler(self, facts)
        return handler if handler.hot is None else handler.hot.handler

    def tally(
        self,
        facts: OpFacts,
        route: Route,
        device: str,
        reason: Reason,
        tensors: list[torch.Tensor],
        *,
        kernel: str | None = None,
        detail: str = "",
        rejected: tuple[Rejection, ...] = (),
    ) -> Tally:
        """The counter of a decision."""
        dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in tensors)
        return self.log.tally((facts.name, route, kernel, device, reason, detail, rejected, dtypes), tensors)

    def counted(self, tally: Tally, plan: Plan) -> Plan:
        """``plan``, counting each call that succeeds; timed if the session times."""
        tick = tally.tick
        if not self.settings.timing:

            def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                result = plan(args, kwargs)
                tick()
                return result

            return run
        clock = time.perf_counter
        tally.seconds = tally.seconds or 0.0

        def run_timed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            start = clock()
            result = plan(args, kwargs)
            tally.seconds += clock() - start  # type: ignore[operator]
            tick()
            return result

        return run_timed

    def store(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy one device tensor into another on the same device, through the routes of ``aten::copy_``."""
        if transfers.is_plain_copy(source, target):
            transfers.move(source, target, transfers.Moved())
        else:
            self.handler(aten.copy_.default)((target, source), {})


class ComputeHandler:
    """Plans of one op, by the dtypes and devices of its tensor arguments."""

    def __init__(self, router: Router, facts: OpFacts) -> None:
        self.router, self.facts = router, facts
        self._plans: dict[tuple[Any, ...], Plan] = {}
        settings = router.settings
        hot = hot_path.serves(facts) and not settings.timing and not settings.debug
        self.hot = hot_path.HotPath(facts, self) if hot else None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = _signature(args, kwargs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._resolve(key, args, kwargs)
        return plan(args, kwargs)

    def _resolve(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        tensors = tensors_in(args, kwargs)
        device = _device_of_call(self.facts, tensors, args, kwargs)
        if device is None:
            plan = self._host_plan(tensors)
        else:
            _check_same_device(self.facts, device, args, kwargs)
            plan = PlanBuilder(self.router, self.facts, device, tensors, self.hot).build()
            if self.facts.is_seeded:
                plan = _drawing_from_own_state(plan, device.index)
            if any(t.device.type != DEVICE_TYPE for t in tensors):
                plan = _checking_devices(plan, self.facts, device)
        self._plans[key] = plan
        return plan

    def _host_plan(self, tensors: list[torch.Tensor]) -> Plan:
        op = self.facts.op
        tally = self.router.tally(self.facts, Route.HOST, "cpu", Reason.POLICY, tensors, detail="no device tensor")
        return self.router.counted(tally, lambda args, kwargs: op(*args, **kwargs))


class PlanBuilder:
    """Makes the plan of one op and signature: vendor kernels in order, then decomposition, then the host."""

    def __init__(
        self, router: Router, facts: OpFacts, device: Device, tensors: list[torch.Tensor], hot: HotPath | None
    ) -> None:
        self.router, self.facts, self.device, self.tensors, self.hot = router, facts, device, tensors, hot
        self.registry: Registry = load()

    def build(self) -> Plan:
        """The plan: what was rejected here is in the decision of what was taken."""
        rejected: list[Rejection] = []
        takers: list[tuple[Kernel, str]] = []
        for kernel, name in self._ordered_candidates(rejected):
            rejection = self._static_rejection(kernel, name)
            if rejection is None:
                takers.append((kernel, name))
            elif not takers:
                rejected.append(rejection)
        return self._chain(takers, tuple(rejected))

    def _ordered_candidates(self, rejected: list[Rejection]) -> list[tuple[Kernel, str]]:
        vendor = self.device.vendor
        kernels = list(self.registry.candidates(vendor, self.facts.name))
        if self.facts.functional is not None:
            kernels += self.registry.candidates(vendor, self.facts.functional.name())
        named = {f"{vendor}/{kernel.name}": kernel for kernel in kernels}
        order = self.registry.manager.hook.flroute_candidate_order(
            op=self.facts.name, device=self.device.name, candidates=list(named)
        )
        names = [name for name in order if name in named] if order is not None else list(named)
        wanted = self._wanted()
        if wanted is not None:
            allowed = wanted[: wanted.index("host")] if "host" in wanted else wanted
            picked = [n for word in allowed for n in names if word in (named[n].implementation, n, vendor)]
            left_out = [n for n in named if n not in picked]
            rejected.extend(Rejection(n, Reason.POLICY, f"not in order for {self.facts.name}") for n in left_out)
            names = list(dict.fromkeys(picked))
        return [(named[name], name) for name in names]

    def _wanted(self) -> tuple[str, ...] | None:
        functional = self.facts.functional
        for name in (self.facts.name, functional.name() if functional is not None else None):
            if name is not None and name in self.router.settings.order:
                return tuple(self.router.settings.order[name])
        return None

    def _static_rejection(self, kernel: Kernel, name: str) -> Rejection | None:
        if kernel.precision.rank < self.router.settings.precision.rank:
            detail = f"{kernel.precision} is below the session's {self.router.settings.precision}"
            return Rejection(name, Reason.PRECISION, detail)
        if kernel.dtypes:
            dtypes = {t.dtype for t in self.tensors}
            if len(dtypes) > 1:
                return Rejection(name, Reason.DTYPE, "mixed dtypes: " + ", ".join(sorted(map(str, dtypes))))
            if not dtypes <= set(kernel.dtypes):
                return Rejection(name, Reason.DTYPE, f"{next(iter(dtypes))} is not among the kernel's dtypes")
        return None

    def _chain(self, takers: list[tuple[Kernel, str]], rejected: tuple[Rejection, ...]) -> Plan:
        if not takers:
            return self._last_resort(rejected)
        (kernel, name), rest = takers[0], takers[1:]
        invocation = Invocation(
            self.facts, kernel, name, self.device, self.router.store, debug=self.router.settings.debug
        )
        route = Route.COPY if self.facts.name == "aten::copy_" else Route.NATIVE
        tally = self.router.tally(
            self.facts, route, self.device.name, Reason.MATCHED, self.tensors, kernel=name, rejected=rejected
        )
        plan = self.router.counted(tally, invocation.adapter())
        conditional = kernel.when is not None or bool(kernel.layouts)
        if self.hot is not None and self.device.memory.host_visible and not rejected:
            plan = _warming(plan, self.hot, invocation, tally)
        onwards: dict[Rejection, Plan] = {}

        def go_on(rejection: Rejection, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            following = onwards.get(rejection)
            if following is None:
                following = onwards[rejection] = self._chain(rest, (*rejected, rejection))
            return following(args, kwargs)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return plan(args, kwargs)
            except Unsupported as why:
                rejection = Rejection(name, Reason.UNSUPPORTED, str(why))
            return go_on(rejection, args, kwargs)

        if not conditional:
            return run

        def run_if(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            rejection = self._refusal(kernel, name, args, kwargs)
            return run(args, kwargs) if rejection is None else go_on(rejection, args, kwargs)

        return run_if

    def _refusal(
        self, kernel: Kernel, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Rejection | None:
        """Why the kernel is not for these arguments, as far as its layouts and its predicate say."""
        if kernel.layouts and not all(t.is_contiguous() for t in tensors_in(args, kwargs)):
            return Rejection(name, Reason.LAYOUT, "needs contiguous arguments")
        if kernel.when is None:
            return None
        try:
            answer = kernel.when(*args, **kwargs)
        except Exception as error:
            code = kernel.when.__code__
            raise VendorError(
                name, "when", f"{code.co_filename}:{code.co_firstlineno}",
                f"the predicate raised {type(error).__name__} for {self.facts.name}: {error}; a predicate must answer",
            ) from error  # fmt: skip
        if answer is True:
            return None
        return Rejection(name, Reason.PREDICATE, answer if isinstance(answer, str) else "its predicate said no")

    # -- no kernel

    def _last_resort(self, rejected: tuple[Rejection, ...]) -> Plan:
        reason = rejected[-1].reason if rejected else Reason.NO_KERNEL
        if self.facts.is_composite:
            op = self.facts.op
            tally = self.router.tally(
                self.facts, Route.DECOMPOSED, self.device.name, Reason.COMPOSITE, self.tensors, rejected=rejected
            )
            return self.router.counted(tally, lambda args, kwargs: run_composite(op, args, kwargs))
        return self._fallback(reason, rejected)

    def _fallback(self, reason: Reason, rejected: tuple[Rejection, ...]) -> Plan:
        detail = self._explain(rejected)
        if self.router.settings.fallback is FallbackPolicy.ERROR:
            return self._refuse(reason, detail)
        tally = self.router.tally(
            self.facts, Route.FALLBACK, self.device.name, reason, self.tensors, detail=detail, rejected=rejected
        )
        facts, device, alias = self.facts, self.device, self.router.settings.fast_fallback

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = HostCall(facts, device, alias=alias)
            result = call.run(args, kwargs)
            tally.bytes_to_host += call.bytes_to_host
            tally.bytes_to_device += call.bytes_to_device
            return result

        return self.router.counted(tally, run)

    def _explain(self, rejected: tuple[Rejection, ...]) -> str:
        if not rejected:
            return f"{self.device.vendor} has no kernel for {self.facts.name}"
        return "; ".join(f"{r.kernel}: {r.detail or r.reason}" for r in rejected)

    def _refuse(self, reason: Reason, detail: str) -> Plan:
        facts, device = self.facts, self.device

        def refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            shapes = ", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors_in(args, kwargs))
            raise FallbackError(
                f"{facts.name} on {device.name} ({device.vendor_device}) with ({shapes}) would fall back to the host: "
                f"{reason}: {detail}. The session's policy is fallback='error'; nothing was computed. Register a kernel for it "
                f"(flroute.vendor.kernel), or use fallback='warn' or 'allow'."
            )

        return refuse


def _warming(plan: Plan, hot: HotPath, invocation: Invocation, tally: Tally) -> Plan:
    """A plan whose signatures take the hot path once a call has passed every check."""
    entry = hot_path.Entry(invocation.kernel.function, tally.tick, invocation.device, invocation.explain, invocation.kernel.when)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = plan(args, kwargs)
        if invocation.plain_results:
            hot.remember(args, kwargs, entry)
        return result

    return run


# -- which device a call belongs to --------------------------------------------------------------------------------


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    key: list[Any] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            key.append(value.dtype)
            key.append(value.device)
        elif isinstance(value, list | tuple):
            key.extend((t.dtype, t.device) for t in value if isinstance(t, torch.Tensor))
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor):
            key.append((name, value.dtype, value.device))
        elif isinstance(value, list | tuple):
            key.extend((name, t.dtype, t.device) for t in value if isinstance(t, torch.Tensor))
        elif isinstance(value, torch.device):
            key.append(value)
    return tuple(key)


def _device_of_call(
    facts: OpFacts, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Device | None:
    """The device a call belongs to: an explicit ``device=``, else that of the first device tensor; ``None`` for the host."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
            return transfers.device_of_factory(value)
    for tensor in tensors:
        if tensor.device.type == DEVICE_TYPE:
            return device_at(tensor.device.index)
    return None


def _check_same_device(facts: OpFacts, device: Device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """All tensors on one device; 0-dim host tensors count as scalars, as on cuda."""
    here = device.torch_device
    for name, value in bind(facts, args, kwargs).items():
        if name in facts.host_arguments:
            continue
        for tensor in tensors_in((value,), {}):
            if tensor.device == here or (tensor.device.type == "cpu" and tensor.dim() == 0):
                continue
            raise DeviceError(
                f"{facts.name}: expected all tensors to be on the same device, but argument {name!r} "
                f"({tensor.dtype} {list(tensor.shape)}) is on {tensor.device} and others are on {here}. "
                f"Move it first: {name}.to({str(here)!r})"
            )


def _checking_devices(plan: Plan, facts: OpFacts, device: Device) -> Plan:
    """Whether a host operand is a scalar is not in a plan's key: look on each call."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _check_same_device(facts, device, args, kwargs)
        return plan(args, kwargs)

    return run


def _drawing_from_own_state(plan: Plan, index: int) -> Plan:
    """A random op: from the host's generator, or from the device's own state if it has one."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not rng.has_own_state(index) or any(isinstance(v, torch.Generator) for v in (*args, *kwargs.values())):
            return plan(args, kwargs)
        with rng.device_stream(index):
            return plan(args, kwargs)

    return run


# -- ops the device serves itself ----------------------------------------------------------------------------------


def _view_handler(router: Router, facts: OpFacts) -> Plan:
    """A call of a metadata op, counted per device."""
    call = view_call(facts.op)
    ticks: dict[torch.device, Callable[[], int]] = {}

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        tensor = args[0] if args else next(iter(kwargs.values()))
        tick = ticks.get(tensor.device)
        if tick is None:
            tally = router.tally(facts, Route.VIEW, str(tensor.device), Reason.METADATA, [tensor])
            tick = ticks[tensor.device] = tally.tick
        tick()
        return result

    return run


def _own(function: Callable[..., Any]) -> Callable[[Router, OpFacts], Plan]:
    """A handler for an op that ``transfers`` implements for every device; host tensors stay with PyTorch."""

    def make(router: Router, facts: OpFacts) -> Plan:
        plans: dict[str, Plan] = {}

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensors = tensors_in(args, kwargs)
            device = _device_of_call(facts, tensors, args, kwargs)
            if device is None:
                return facts.op(*args, **kwargs)
            plan = plans.get(device.name)
            if plan is None:
                tally = router.tally(
                    facts, Route.NATIVE, device.name, Reason.MATCHED, tensors, kernel=f"fl/device:{function.__name__}"
                )
                plan = plans[device.name] = router.counted(tally, lambda args, kwargs: function(*args, **kwargs))
            return plan(args, kwargs)

        return run

    return make


def _copy_handler(router: Router, facts: OpFacts) -> Plan:
    """``_copy_from(source, target)``: between host and device or two devices it moves bytes; on one device it is ``copy_``."""
    tallies: dict[tuple[Any, ...], Tally] = {}
    resizes = facts.op is aten._copy_from_and_resize.default

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source, target = args[0], args[1]
        if resizes:
            transfers.copy_and_resize(source, target)
        if source.device == target.device and not transfers.is_plain_copy(source, target):
            router.handler(aten.copy_.default)((target, source), {})
            return target
        key = (source.device, target.device, source.dtype, target.dtype)
        tally = tallies.get(key)
        if tally is None:
            where = f"{source.device}->{target.device}" if source.device != target.device else str(target.device)
            tally = tallies[key] = router.tally(
                facts, Route.COPY, where, Reason.TRANSFER, [source, target], kernel="fl/device:copy"
            )
        moved = transfers.Moved()
        start = time.perf_counter()
        transfers.move(source, target, moved)
        if router.settings.timing:
            tally.seconds = (tally.seconds or 0.0) + time.perf_counter() - start
        tally.tick()
        tally.bytes_to_host += moved.to_host
        tally.bytes_to_device += moved.to_device
        return target

    return run


def _copy_inplace_handler(router: Router, facts: OpFacts) -> Plan:
    """``copy_(target, source)``: on one device an op like any other, else a transfer."""
    on_one_device = ComputeHandler(router, facts)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        if source.device == target.device:
            if target.device.type == DEVICE_TYPE and transfers.is_plain_copy(source, target):
                router(aten._copy_from.default, (source, target), {})
                return target
            return on_one_device(args, kwargs)
        if DEVICE_TYPE not in (source.device.type, target.device.type):
            return facts.op(*args, **kwargs)
        router(aten._copy_from.default, (source, target), {})
        return target

    return run


def _to_copy_handler(router: Router, facts: OpFacts) -> Plan:
    """``_to_copy``: PyTorch's composite, which asks for pinned host memory when told not to block."""
    handler = ComputeHandler(router, facts)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return handler(args, {k: v for k, v in kwargs.items() if k not in ("non_blocking", "pin_memory")})

    return run


def _scalar_handler(router: Router, facts: OpFacts) -> Plan:
    """``_local_scalar_dense``: one element crosses to the host."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if tensor.device.type != DEVICE_TYPE:
            return facts.op(*args, **kwargs)
        value = transfers.read_scalar(tensor)
        tally = router.tally(
            facts, Route.COPY, f"{tensor.device}->cpu", Reason.TRANSFER, [tensor], kernel="fl/device:read_scalar"
        )
        tally.tick()
        tally.bytes_to_host += tensor.dtype.itemsize
        return value

    return run


_DEVICE_OPS: dict[str, Callable[[Router, OpFacts], Plan]] = {
    "aten::empty.memory_format": _own(transfers.empty_memory_format),
    "aten::empty_strided": _own(transfers.empty_with_strides),
    "aten::resize_": _own(transfers.resize),
    "aten::copy_": _copy_inplace_handler,
    "aten::_to_copy": _to_copy_handler,
    "aten::_copy_from": _copy_handler,
    "aten::_copy_from_and_resize": _copy_handler,
    "aten::_local_scalar_dense": _scalar_handler,
}
