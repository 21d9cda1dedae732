"""Plans: how calls of one op with one signature are served, resolved once.

A handler keeps plans by the dtypes and devices of the tensor arguments. A plan is a chain: the vendor's kernels in order,
then PyTorch's decomposition, then the host; what was rejected on the way is part of the decision that is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flroute.device import rng
from flroute.device.table import DEVICE_TYPE, Device
from flroute.errors import FallbackError, Unsupported, VendorError
from flroute.kernels import Kernel
from flroute.registry import Registry, load
from flroute.routing import hot_path
from flroute.routing.accounting import Tally
from flroute.routing.fallback import HostCall
from flroute.routing.hot_path import HotPath
from flroute.routing.native import Invocation
from flroute.routing.placement import check_same_device, device_of_call, signature
from flroute.routing.schema import OpFacts, tensors_in
from flroute.torch_compat import resolving_lazy_bits, run_composite
from flroute.vocabulary import FallbackPolicy, Reason, Rejection, Route

if TYPE_CHECKING:
    from flroute.routing.router import Router

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class ComputeHandler:
    """Plans of one op, by the dtypes and devices of its tensor arguments."""

    def __init__(self, router: Router, facts: OpFacts) -> None:
        self.router, self.facts = router, facts
        self._plans: dict[tuple[Any, ...], Plan] = {}
        settings = router.settings
        hot = hot_path.serves(facts) and not settings.timing and not settings.debug
        self.hot = hot_path.HotPath(facts, self) if hot else None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = signature(args, kwargs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._resolve(key, args, kwargs)
        return plan(args, kwargs)

    def _resolve(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        tensors = tensors_in(args, kwargs)
        device = device_of_call(tensors, args, kwargs)
        if device is None:
            plan = self._host_plan(tensors)
        else:
            check_same_device(self.facts, device, args, kwargs)
            inputs = tensors_in(args, {n: v for n, v in kwargs.items() if n not in self.facts.out_names})
            plan = PlanBuilder(self.router, self.facts, device, tensors, inputs, self.hot).build()
            if self.facts.is_seeded:
                plan = _drawing_from_own_state(plan, device.index)
            if any(t.device.type != DEVICE_TYPE for t in tensors):
                plan = _checking_devices(plan, self.facts, device)
        self._plans[key] = plan
        return plan

    def _host_plan(self, tensors: list[torch.Tensor]) -> Plan:
        op = self.facts.op
        tally = self.router.tally(
            self.facts, Route.HOST, "cpu", Reason.POLICY, tensors, detail="no device tensor"
        )
        if not self.facts.is_composite:
            return self.router.counted(tally, lambda args, kwargs: op(*args, **kwargs))

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with resolving_lazy_bits():
                return op(*args, **kwargs)

        return self.router.counted(tally, run)


class PlanBuilder:
    """Makes the plan of one op and signature: vendor kernels in order, then decomposition, then the host."""

    def __init__(
        self,
        router: Router,
        facts: OpFacts,
        device: Device,
        tensors: list[torch.Tensor],
        inputs: list[torch.Tensor],
        hot: HotPath | None,
    ) -> None:
        self.router, self.facts, self.device, self.tensors, self.hot = router, facts, device, tensors, hot
        self.inputs = inputs
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
            rejected.extend(
                Rejection(n, Reason.POLICY, f"not in order for {self.facts.name}") for n in left_out
            )
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
            dtypes = {t.dtype for t in self.inputs}
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
        inputs = {name: value for name, value in kwargs.items() if name not in self.facts.out_names}
        try:
            answer = kernel.when(*args, **inputs)
        except Exception as error:
            code = kernel.when.__code__
            raise VendorError(
                name, "when", f"{code.co_filename}:{code.co_firstlineno}",
                f"the predicate raised {type(error).__name__} for {self.facts.name}: {error}; a predicate must answer",
            ) from error  # fmt: skip
        if answer is True:
            return None
        return Rejection(
            name, Reason.PREDICATE, answer if isinstance(answer, str) else "its predicate said no"
        )

    # -- no kernel

    def _last_resort(self, rejected: tuple[Rejection, ...]) -> Plan:
        reason = rejected[-1].reason if rejected else Reason.NO_KERNEL
        if self.facts.is_composite:
            op = self.facts.op
            tally = self.router.tally(
                self.facts,
                Route.DECOMPOSED,
                self.device.name,
                Reason.COMPOSITE,
                self.tensors,
                rejected=rejected,
            )
            return self.router.counted(tally, lambda args, kwargs: run_composite(op, args, kwargs))
        return self._fallback(reason, rejected)

    def _fallback(self, reason: Reason, rejected: tuple[Rejection, ...]) -> Plan:
        detail = self._explain(rejected)
        if self.router.settings.fallback is FallbackPolicy.ERROR:
            return self._refuse(reason, detail)
        tally = self.router.tally(
            self.facts,
            Route.FALLBACK,
            self.device.name,
            reason,
            self.tensors,
            detail=detail,
            rejected=rejected,
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
    entry = hot_path.Entry(
        invocation.kernel.function, tally.tick, invocation.device, invocation.explain, invocation.kernel.when
    )

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = plan(args, kwargs)
        if invocation.plain_results:
            hot.remember(args, kwargs, entry)
        return result

    return run


def _checking_devices(plan: Plan, facts: OpFacts, device: Device) -> Plan:
    """Whether a host operand is a scalar is not in a plan's key: look on each call."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_same_device(facts, device, args, kwargs)
        return plan(args, kwargs)

    return run


def _drawing_from_own_state(plan: Plan, index: int) -> Plan:
    """A random op: from the host's generator, or from the device's own state if it has one."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not rng.has_own_state(index) or any(
            isinstance(v, torch.Generator) for v in (*args, *kwargs.values())
        ):
            return plan(args, kwargs)
        with rng.device_stream(index):
            return plan(args, kwargs)

    return run
