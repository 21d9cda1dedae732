"""Plans: how calls of one op with one signature are served, resolved once.

A handler keeps plans by the dtypes and devices of the tensor arguments. A plan is a chain: the vendor's kernels in order,
then PyTorch's decomposition, then the host; what was rejected on the way is part of the decision that is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flroute.device import rng
from flroute.device.host_memory import for_device
from flroute.device.table import DEVICE_TYPE, Device
from flroute.errors import FallbackError, Unsupported
from flroute.policy import Rule
from flroute.routing import hot_path
from flroute.routing.accounting import Counts
from flroute.routing.arrays import as_tensor, refusing_kept
from flroute.routing.candidates import candidates_in_order, in_words, refusal
from flroute.routing.composites import brought_by_plugin, split_of
from flroute.routing.expected import expected_results, raise_what_the_host_raises
from flroute.routing.fallback import HostCall, InKernel
from flroute.routing.host_times import HostTimes, beside_host
from flroute.routing.hot_path import HotPath
from flroute.routing.hot_results import finish_for
from flroute.routing.native import Invocation
from flroute.routing.placement import check_same_device, device_of_call, signature
from flroute.routing.predicates import Predicate, ask
from flroute.routing.preference import Step, rule_for, rules_about
from flroute.routing.recording import note, now, recorded_kernel
from flroute.routing.schema import OpFacts, facts_of, tensors_in
from flroute.routing.sparse import METADATA as SPARSE_METADATA
from flroute.routing.sparse import concerns_sparse, is_computed_whole, is_sparse, metadata_plan
from flroute.routing.tallies import dtype_names, shapes_in, timed
from flroute.torch_compat import find_op, outside_dispatch_modes, resolving_lazy_bits
from flroute.vocabulary import FallbackPolicy, Reason, Rejection, Route

if TYPE_CHECKING:
    from flroute.routing.router import Router

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_ASKED_OF_THE_HOST = 2**24
"""Bytes of arguments up to which the host is asked, on copies, whether a call that may not fall back is wrong in itself; to copy
more only to find the words of an error would be work."""

_MAX_REFUSALS = 64
"""Chains kept per candidate for what it refused; a kernel may word each refusal differently."""


class ComputeHandler:
    """Plans of one op, by the dtypes and devices of its tensor arguments."""

    def __init__(self, router: Router, facts: OpFacts) -> None:
        self.router, self.facts = router, facts
        self._plans: dict[tuple[Any, ...], Plan] = {}
        settings = router.settings
        self._rules = rules_about(settings.policy, facts)
        self._rule_differs = any(rule.differs_by_call for rule in self._rules)
        every_call_is_seen = (
            settings.modules or settings.debug or settings.watch_kernels or self._rule_differs
        )
        hot = hot_path.serves(facts) and not every_call_is_seen
        self._hot = hot_path.HotPath(facts) if hot else None

    def quickest(self) -> Plan:
        """The handler to call: that of the hot path, for an op that has one, which leaves other calls to this."""
        return self if self._hot is None else self._hot.handler(self)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call."""
        key = signature(args, kwargs)
        if self._rule_differs:
            rule = rule_for(self._rules, self.facts, args, kwargs)
            key = (*key, rule)
        plan = self._plans.get(key)
        if plan is None:
            if not self._rule_differs:
                rule = rule_for(self._rules, self.facts, args, kwargs)
            plan = self._plans[key] = self._resolve(rule, args, kwargs)
        return plan(args, kwargs)

    def _resolve(self, rule: Rule | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        tensors = tensors_in(args, kwargs)
        device = device_of_call(tensors, args, kwargs)
        if device is None:
            return self._host_plan(dtype_names(tensors))
        check_same_device(self.facts, device, args, kwargs)
        if concerns_sparse(args, kwargs):
            return self._sparse_plan(device, args, kwargs)
        inputs = tensors_in(args, {n: v for n, v in kwargs.items() if n not in self.facts.out_names})
        dtypes = frozenset(t.dtype for t in inputs)
        seen = dtype_names(tensors)
        plan = PlanBuilder(self.router, self.facts, device, seen, dtypes, rule, self._hot).build()
        if self.facts.is_seeded and not self.facts.is_composite:
            plan = _drawing_from_own_state(plan, device.index)
        if any(t.device.type != DEVICE_TYPE for t in tensors):
            plan = _checking_devices(plan, self.facts, device)
        return plan

    def _sparse_plan(self, device: Device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """No vendor kernel takes sparse tensors: metadata, or a plugin's or PyTorch's split, or the host."""
        facts, seen = self.facts, dtype_names(tensors_in(args, kwargs))
        if facts.name in SPARSE_METADATA:
            counts = self.router.counts(facts, Route.VIEW, device.name, Reason.METADATA, seen)
            return self.router.counted(counts, metadata_plan(facts, device))
        builder = PlanBuilder(self.router, facts, device, seen, frozenset(), None, None)
        return builder.build_sparse(whole=is_computed_whole(facts, args, kwargs))

    def _host_plan(self, seen: tuple[str, ...]) -> Plan:
        op = self.facts.op
        counts = self.router.counts(
            self.facts, Route.HOST, "cpu", Reason.POLICY, seen, detail="no device tensor"
        )
        if not seen and (takes := self.facts.takes_tensor_at):  # numbers in the place of tensors

            def of_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return op(*(as_tensor(arg) if at in takes else arg for at, arg in enumerate(args)), **kwargs)

            return self.router.counted(counts, of_numbers)
        if not self.facts.is_composite:
            return self.router.counted(counts, lambda args, kwargs: op(*args, **kwargs))

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with resolving_lazy_bits():
                return op(*args, **kwargs)

        return self.router.counted(counts, run)


class PlanBuilder:
    """Makes the plan of one op and signature: vendor kernels in order, then decomposition, then the host.

    Args:
        router: whose settings and log apply.
        facts: of the op.
        device: where the call belongs.
        seen: dtypes of all the call's tensors, for the decision.
        dtypes: of the tensors that are read.
        rule: of the settings, that holds for the call.
        hot: where a native plan may leave a short cut.
    """

    def __init__(
        self,
        router: Router,
        facts: OpFacts,
        device: Device,
        seen: tuple[str, ...],
        dtypes: frozenset[torch.dtype],
        rule: Rule | None,
        hot: HotPath | None,
    ) -> None:
        self.router, self.facts, self.device, self.seen, self.hot = router, facts, device, seen, hot
        self.dtypes, self.rule = dtypes, rule

    def build(self) -> Plan:
        """The plan: what was rejected on the way is in the decision of what was taken."""
        return self._chain(
            candidates_in_order(self.router.settings, self.facts, self.device, self.dtypes, self.rule), ()
        )

    def build_sparse(self, *, whole: bool) -> Plan:
        """The plan of a call with sparse tensors.

        Args:
            whole: whether the host has a kernel for it, which comes before PyTorch's split, but after a plugin's.
        """
        find = brought_by_plugin if whole else split_of
        split = find(self.facts, self.device.vendor)
        if split is not None:
            return self.router.counted(self._counts(Route.DECOMPOSED, Reason.COMPOSITE), split)
        return self._fallback(
            Reason.LAYOUT, (), "vendor kernels take strided tensors; the host computes with sparse ones"
        )

    def _counts(self, route: Route, reason: Reason, **more: Any) -> Counts:
        return self.router.counts(self.facts, route, self.device.name, reason, self.seen, **more)

    def _chain(
        self, steps: list[Step], rejected: tuple[Rejection, ...], refused: tuple[Predicate, ...] = ()
    ) -> Plan:
        while steps and isinstance(steps[0], Rejection):
            rejected, steps = (*rejected, steps[0]), steps[1:]
        if not steps:
            return self._last_resort(rejected)
        (kernel, name), rest = steps[0], steps[1:]  # type: ignore[misc]
        if self.router.settings.debug:
            kernel = replace(kernel, function=refusing_kept(kernel.function, name))
        route = Route.COPY if self.facts.name == "aten::copy_" else Route.NATIVE
        counts = self._counts(route, Reason.MATCHED, kernel=name, rejected=rejected)
        if self.router.recordings:
            function = recorded_kernel(kernel.function, counts.choice, self.seen, self.router.recordings)
            kernel = replace(kernel, function=function)
        if self.device.vendor_index:
            kernel = replace(kernel, function=for_device(self.device.vendor_index, kernel.function))
        invocation = Invocation(self.facts, kernel, name, self.device, self.router.store, self.account_host_work(name),
                                debug=self.router.settings.debug, watch=self.router.settings.watch_kernels)  # fmt: skip
        plan = self._beside_host(self.router.counted(counts, invocation.adapter()))
        if self._may_be_hot(rejected):
            timing = self.router.settings.timing
            plan = _warming(plan, self.hot, invocation, counts, refused, timing=timing)  # type: ignore[arg-type]
        onwards: dict[Rejection, Plan] = {}

        def go_on(rejection: Rejection, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            following = onwards.get(rejection)
            if following is None:
                if len(onwards) >= _MAX_REFUSALS:
                    onwards.clear()
                said_no = (kernel.when,) if rejection.reason is Reason.PREDICATE and kernel.when else ()
                following = self._chain(rest, (*rejected, rejection), (*refused, *said_no))
                onwards[rejection] = following
            return following(args, kwargs)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return plan(args, kwargs)
            except Unsupported as why:
                rejection = Rejection(name, Reason.UNSUPPORTED, str(why))
            except Exception:  # PyTorch's own refusal of a call says more than what a kernel made of it
                expected_results(self.facts.op, args, kwargs)
                raise
            return go_on(rejection, args, kwargs)

        if kernel.when is None and not kernel.layouts and not kernel.min_numel:
            return run

        def run_if(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            rejection = refusal(self.facts, kernel, name, args, kwargs)
            return run(args, kwargs) if rejection is None else go_on(rejection, args, kwargs)

        return run_if

    def _may_be_hot(self, rejected: tuple[Rejection, ...]) -> bool:
        """Whether the same signature always gets here, predicates aside, which are asked again on each call.

        A signature holds every shape and stride; what a kernel raised ``Unsupported`` for may be anything.
        """
        static = (
            Reason.DTYPE, Reason.PRECISION, Reason.POLICY, Reason.LAYOUT, Reason.SIZE, Reason.PREDICATE,
        )  # fmt: skip
        return (
            self.hot is not None
            and self.device.memory.host_visible
            and all(rejection.reason in static for rejection in rejected)
        )

    def account_host_work(self, kernel: str) -> InKernel:
        """How ``host_fallback`` inside ``kernel`` is accounted for, or refused."""
        router, device = self.router, self.device  # not the builder, whose short cuts would hold it in turn
        counts_of: dict[tuple[str, tuple[str, ...]], Counts] = {}

        def account(op: str, tensors: list[torch.Tensor], work: Callable[[], Any]) -> Any:
            facts, detail = facts_of(find_op(op)), f"by kernel {kernel}"
            if router.settings.fallback is FallbackPolicy.ERROR:
                raise FallbackError(
                    f"{op} on {device.name} would run on the host: {Reason.IN_KERNEL}: {detail}. The session's policy "
                    f"is fallback='error'; it was not computed. Compute it in the kernel, or use fallback='warn' or 'allow'."
                )
            shapes = shapes_in((tensors,), {})
            start = now()
            with outside_dispatch_modes() if router.settings.watch_kernels else nullcontext():
                result = work()  # declared, or seen once already
            end = now()
            what = (op, dtype_names(tensors))
            counts = counts_of.get(what)
            if counts is None:
                counts = counts_of[what] = router.counts(
                    facts, Route.FALLBACK, device.name, Reason.IN_KERNEL, what[1], kernel=kernel, detail=detail
                )  # fmt: skip
            counts(shapes).tick()
            if router.recordings:
                nbytes = sum(tensor.nbytes for tensor in tensors)
                note(router.recordings, counts.choice, what[1], shapes, start, end, nbytes)
            return result

        return account

    def _last_resort(self, rejected: tuple[Rejection, ...]) -> Plan:
        reason = rejected[-1].reason if rejected else Reason.NO_KERNEL
        split = split_of(self.facts, self.device.vendor)
        if split is not None:
            return self.router.counted(
                self._counts(Route.DECOMPOSED, Reason.COMPOSITE, rejected=rejected), split
            )
        return self._fallback(reason, rejected)

    def _fallback(self, reason: Reason, rejected: tuple[Rejection, ...], detail: str = "") -> Plan:
        detail = detail or self._explain(rejected)
        if self.router.settings.fallback is FallbackPolicy.ERROR:
            return self._refuse(reason, detail)
        counts = self._counts(Route.FALLBACK, reason, detail=detail, rejected=rejected)
        facts, device, alias = self.facts, self.device, self.router.settings.fast_fallback

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call, shapes = HostCall(facts, device, alias=alias), shapes_in(args, kwargs)
            result = call.run(args, kwargs)
            tally = counts(shapes)
            tally.bytes_to_host += call.bytes_to_host
            tally.bytes_to_device += call.bytes_to_device
            return result

        return self._beside_host(self.router.counted(counts, self.router.recorded(counts, run)))

    def _beside_host(self, plan: Plan) -> Plan:
        """``plan``, the host being timed for the same calls while somebody asks for that."""
        asked: list[HostTimes] = [r.host_times for r in self.router.recordings if r.host_times is not None]
        return beside_host(plan, self.facts, self.seen, tuple(asked))

    def _explain(self, rejected: tuple[Rejection, ...]) -> str:
        if not rejected:
            return f"{self.device.vendor} has no kernel for {self.facts.name}"
        return in_words(rejected)

    def _refuse(self, reason: Reason, detail: str) -> Plan:
        facts, device = self.facts, self.device

        def refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            shapes = ", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors_in(args, kwargs))
            if sum(t.nbytes for t in tensors_in(args, kwargs) if not is_sparse(t)) <= _ASKED_OF_THE_HOST:
                call = f"{facts.name} on {device.name} with ({shapes})"
                raise_what_the_host_raises(facts.op, args, kwargs, note=f"raised for {call}; {detail}")
            raise FallbackError(
                f"{facts.name} on {device.name} ({device.vendor_device}) with ({shapes}) would fall back to the host: "
                f"{reason}: {detail}. The session's policy is fallback='error'; nothing was computed. Register a kernel for it "
                f"(flroute.vendor.kernel), or use fallback='warn' or 'allow'."
            )

        return refuse


def _warming(
    plan: Plan,
    hot: HotPath,
    invocation: Invocation,
    counts: Counts,
    refused: tuple[Predicate, ...],
    *,
    timing: bool,
) -> Plan:
    """A plan whose signatures take the hot path once a call has passed every check.

    ``refused`` are the predicates of kernels before this one, which must say no again.
    """
    facts, kernel = invocation.facts, invocation.kernel
    finish = finish_for(facts, writes_itself=invocation.writes_itself)
    when: Predicate | None = None
    if refused or kernel.when is not None:
        own = kernel.when

        def when(*args: Any, **kwargs: Any) -> bool | str:
            if any(ask(other, facts, invocation.name, args, kwargs) is True for other in refused):
                return False
            return own is None or ask(own, facts, invocation.name, args, kwargs)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shapes = shapes_in(args, kwargs)
        result = plan(args, kwargs)
        if invocation.plain_results:
            tally = counts(shapes)
            function = timed(kernel.function, tally) if timing else kernel.function
            entry = hot_path.Entry(function, tally.tick, invocation.device, invocation.explain, when, finish)
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
