"""From a collective to who does it: the vendor's kernels in order, then gloo; accounted for like any other op."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import get_global_rank

from flroute.device.host_memory import for_device
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.distributed.arguments import absent_peer
from flroute.distributed.collectives import COLLECTIVES, Ask, Call, Collective, map_nested, tensors_within
from flroute.distributed.groups import Group, group_of
from flroute.distributed.host_side import HostSide, Reduction, SparseSide, check_layouts, reduction_for
from flroute.distributed.works import Flight, handle_of
from flroute.errors import CollectiveError, DeviceError, Unsupported
from flroute.routing.accounting import Counts
from flroute.routing.candidates import candidates_in_order, refusal
from flroute.routing.native import Invocation
from flroute.routing.plans import PlanBuilder
from flroute.routing.preference import rule_for, rules_about
from flroute.routing.schema import OpFacts
from flroute.routing.sparse import is_sparse, parts_of
from flroute.routing.tallies import dtype_names
from flroute.torch_compat import reduction_in, unboxed_group
from flroute.vocabulary import Reason, Rejection, Route

if TYPE_CHECKING:
    from flroute.routing.router import Router

_MAX_COUNTS = 256
"""Counters kept by a handler; a kernel may word each refusal differently."""

_GROUP, _REDUCTION = "process_group", "reduce_op"


class CollectiveHandler:
    """Serves the calls of one collective op under one router.

    Args:
        router: whose settings and log apply.
        facts: of the op.
    """

    def __init__(self, router: Router, facts: OpFacts) -> None:
        self._router, self._facts = router, facts
        self._collective = COLLECTIVES[facts.name]
        self._rules = rules_about(router.settings.policy, facts)
        self._invocations: dict[tuple[Any, ...], list[Invocation | Rejection]] = {}
        self._counts: dict[tuple[Any, ...], Counts] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call."""
        start = time.perf_counter()
        call = self._bind(args, kwargs)
        tensors = [tensor for value in call.values() for tensor in tensors_within(value)]
        device = _one_device(self._facts.name, tensors)
        _one_dtype(self._facts.name, call, self._collective)
        _fitting(self._collective, call)
        check_layouts(self._facts.name, tensors, call.get(_REDUCTION), self._collective.function)
        of_a_layout = any(map(is_sparse, tensors))
        dtypes = dtype_names(tensors)
        rejected: list[Rejection] = []
        for step in self._steps(device, tensors, dtypes, args, kwargs):
            why = step if isinstance(step, Rejection) else self._refusal(step, call, of_a_layout)
            if why is None and isinstance(step, Invocation):
                try:
                    work = self._by_vendor(step, call)
                except Unsupported as error:
                    why = Rejection(step.name, Reason.UNSUPPORTED, str(error))
                else:
                    self._count(Route.NATIVE, step.name, device, tensors, tuple(rejected), start)
                    return self._answer(call, work)
            if why is not None:
                rejected.append(why)
        work, detail = self._by_gloo(call)
        self._count(
            Route.COPY,
            f"fl/gloo:{self._collective.name}",
            device,
            tensors,
            tuple(rejected),
            start,
            detail,
            call,
        )
        return self._answer(call, work)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name, the defaults too; group and reduction as PyTorch's Python knows them."""
        call = {a.name: a.default_value for a in self._facts.arguments if a.has_default_value()}
        call |= {a.name: value for a, value in zip(self._facts.arguments, args, strict=False)}
        call |= kwargs
        call[_GROUP] = unboxed_group(call[_GROUP])
        if _REDUCTION in call:
            call[_REDUCTION] = reduction_in(call[_REDUCTION])
        return call

    def _answer(self, call: dict[str, Any], work: Any) -> Any:
        """What the op returns: the work, after the tensors it wrote where the schema has them."""
        if len(self._facts.schema.returns) == 1:
            return work.boxed()
        return call[self._collective.writes[0]], work.boxed()

    # -- by a vendor's kernel

    def _steps(
        self,
        device: Device,
        tensors: Sequence[torch.Tensor],
        dtypes: tuple[str, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> list[Invocation | Rejection]:
        rule = rule_for(self._rules, self._facts, args, kwargs) if self._rules else None
        key = (device.index, dtypes, rule)
        found = self._invocations.get(key)
        if found is None:
            settings, kinds = self._router.settings, frozenset(t.dtype for t in tensors)
            builder = PlanBuilder(self._router, self._facts, device, dtypes, kinds, rule, None)
            found = self._invocations[key] = [
                step if isinstance(step, Rejection) else self._invocation(builder, *step)
                for step in candidates_in_order(settings, self._facts, device, kinds, rule)
            ]
        return found

    def _invocation(self, builder: PlanBuilder, kernel: Any, name: str) -> Invocation:
        device, settings = builder.device, self._router.settings
        if device.vendor_index:
            kernel = replace(kernel, function=for_device(device.vendor_index, kernel.function))
        return Invocation(
            self._facts, kernel, name, device, self._router.store, builder.account_host_work(name),
            debug=settings.debug, watch=settings.watch_kernels,
        )  # fmt: skip

    def _refusal(self, step: Invocation, call: dict[str, Any], of_a_layout: bool) -> Rejection | None:
        if of_a_layout:
            return Rejection(step.name, Reason.LAYOUT, "kernels of collectives are for strided tensors")
        return refusal(self._facts, step.kernel, step.name, (), call)

    def _by_vendor(self, step: Invocation, call: dict[str, Any]) -> Any:
        """Call a kernel; it answers with nothing once it is done, or with a function that waits."""
        wait = step.call((), call)
        if wait is not None and not callable(wait):
            raise CollectiveError(
                f"kernel {step.name} of {self._facts.name} must return nothing once it is done, or a function that waits "
                f"until it is; it returned {type(wait).__name__}"
            )
        flight = Flight(
            self._facts.name,
            _written(call, self._collective),
            finish=partial(_keep, call),
            explain=_as_it_is,
            calls_back=False,
        )
        handle = handle_of(flight)
        flight.take_off(lambda: [] if wait is None else [_Waiting(wait)])
        if call.get("async_op", True):
            flight.wait_in_background()
        else:
            flight.wait()
        return handle

    # -- by gloo

    def _by_gloo(self, call: dict[str, Any]) -> tuple[Any, str]:
        collective = self._collective
        group = group_of(call[_GROUP])
        title, kind = _in_words(collective, call)
        reduction = None
        if _REDUCTION in call:
            dtype = next(t.dtype for name in collective.reads for t in tensors_within(call[name]))
            reduction = reduction_for(dtype, call[_REDUCTION], title)
        lowered = _Lowered(collective, call, reduction)
        gloo_call = Call(
            lowered.values, group.transport, group.size, group.roll_call.rank, reduction.op if reduction else None,
            lowered.row_bytes,
        )  # fmt: skip
        seconds = call["timeout"] / 1000 if call.get("timeout", -1) >= 0 else group.timeout
        if collective.ask is Ask.NOBODY:
            return self._between_two(group, gloo_call, lowered, call, title), lowered.detail
        always = self._router.settings.debug
        peers = group.peers_to_ask(collective, call.get("root_rank", 0), kind, always=always)
        entry = group.roll_call.enter(kind, title)
        in_background = call.get("async_op", True)
        flight = Flight(
            str(entry),
            _written(call, collective) if in_background else (),  # else nobody asks for a future
            finish=lowered.finish_of(gloo_call),
            explain=partial(group.roll_call.explain, entry),
            calls_back=in_background,
        )
        handle = handle_of(flight)
        group.begin(entry, peers, lambda: collective.start(gloo_call), flight, seconds)
        if not in_background:
            flight.wait()
        return handle, lowered.detail

    def _between_two(
        self, group: Group, call: Call, lowered: _Lowered, arguments: dict[str, Any], title: str
    ) -> Any:
        """``send`` and ``recv``: gloo's works have no future, so whoever waits learns of the end."""

        def explain(error: Exception) -> CollectiveError:
            return CollectiveError(f"{title} {group.roll_call.here} failed: {error}")

        written = _written(arguments, self._collective)
        flight = Flight(title, written, finish=lowered.finish_of(call), explain=explain, calls_back=False)
        handle = handle_of(flight)
        flight.take_off(lambda: self._collective.start(call))
        return handle

    # -- accounting

    def _count(
        self,
        route: Route,
        kernel: str,
        device: Device,
        tensors: Sequence[torch.Tensor],
        rejected: tuple[Rejection, ...],
        start: float,
        detail: str = "",
        moved: dict[str, Any] | None = None,
    ) -> None:
        dtypes = dtype_names(tensors)
        reason = Reason.MATCHED if route is Route.NATIVE else Reason.TRANSFER
        key = (route, kernel, device.index, dtypes, rejected, detail)
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _MAX_COUNTS:
                self._counts.clear()
            counts = self._counts[key] = self._router.counts(
                self._facts,
                route,
                device.name,
                reason,
                dtypes,
                kernel=kernel,
                detail=detail,
                rejected=rejected,
            )
        tally = counts(tuple(t.shape for t in tensors))
        tally.tick()
        if self._router.settings.timing:
            tally.seconds = (tally.seconds or 0.0) + time.perf_counter() - start
        if moved is not None:
            tally.bytes_to_host += _bytes(moved, self._collective.reads)
            tally.bytes_to_device += _bytes(moved, self._collective.writes)


class _Lowered:
    """A call's arguments for gloo.

    Attributes:
        values: with flat host tensors in place of tensors.
        row_bytes: of ``alltoall_base_``'s two tensors.
        detail: whether anything was copied; empty for a barrier, which moves nothing.
    """

    def __init__(self, collective: Collective, call: dict[str, Any], reduction: Reduction | None) -> None:
        self._sides: dict[int, HostSide | SparseSide] = {}
        self.values = dict(call)
        for names, reads in ((collective.reads, True), (collective.writes, False)):
            for name in names:
                self.values[name] = map_nested(
                    partial(self._lower, reads=reads, reduction=reduction), call[name]
                )
        written = {id(t) for t in _written(call, collective)}
        self._written = [side for key, side in self._sides.items() if key in written]
        copied = any(side.is_copy for side in self._sides.values())
        in_words = "through a copy on the host" if copied else "on the device's own memory"
        self.detail = in_words if self._sides else ""
        self.row_bytes = {}
        if collective.name == "alltoall_base_":
            self.row_bytes = {
                name: call[name].nbytes // max(call[name].size(0), 1) if call[name].dim() else 0
                for name in ("input", "output")
            }

    def _lower(self, tensor: torch.Tensor, *, reads: bool, reduction: Reduction | None) -> torch.Tensor:
        side = self._sides.get(id(tensor))
        if side is None:
            if reduction is not None and is_sparse(tensor):
                side = SparseSide(tensor, reduction)
            else:
                side = HostSide(tensor, reads=reads, reduction=reduction)
            self._sides[id(tensor)] = side
        return side.flat

    def finish_of(self, call: Call) -> Callable[[], None]:
        """What brings to the device what gloo has brought; until then it holds every tensor, for gloo reads their memory itself.

        It holds no process group. gloo's thread is the last to have it where a group is destroyed while it works; with it the
        group would end in its own thread, which ends the process.
        """
        return partial(_write_back, call.afterwards, self._written, call.size, [*self._sides.values()])


def _write_back(
    steps: Sequence[Callable[[], object]],
    sides: Sequence[HostSide | SparseSide],
    ranks: int,
    _held: Sequence[HostSide | SparseSide],
) -> None:
    for step in steps:
        step()
    for side in sides:
        side.write_back(ranks)


class _Waiting:
    """What a kernel answered with, as a transport's work."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def wait(self, _timeout: timedelta) -> None:
        self._wait()


def _in_words(collective: Collective, call: dict[str, Any]) -> tuple[str, str]:
    """A call for people, and what of it must be the same on every rank."""
    names = collective.sized_by or collective.reads or collective.writes
    tensors = [tensor for name in names for tensor in tensors_within(call[name])]
    shown = ", ".join(f"{dtype_names([t])[0]} {list(t.shape)}" for t in tensors[:3])
    shown += f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
    sizes = ",".join(str(t.numel()) for t in tensors) if collective.same_size else ""
    facts = [f"{name} {call[name]}" for name in ("root_rank", "dst", "src", "tag") if name in call]
    if _REDUCTION in call:
        facts.insert(0, call[_REDUCTION].name)
    dtypes = ",".join(dict.fromkeys(dtype_names(tensors)))
    title = f"{collective.name}" + (f" of {shown}" if shown else "")
    return ", ".join([title, *facts]), " ".join([collective.name, dtypes, sizes, *facts])


def _written(call: dict[str, Any], collective: Collective) -> list[torch.Tensor]:
    return [tensor for name in collective.writes for tensor in tensors_within(call[name])]


def _bytes(call: dict[str, Any], names: Sequence[str]) -> int:
    tensors = (tensor for name in names for tensor in tensors_within(call[name]))
    return sum(part.nbytes for tensor in tensors for part in parts_of(tensor))


def _one_device(op: str, tensors: Sequence[torch.Tensor]) -> Device:
    device = next(tensor.device for tensor in tensors if tensor.device.type == DEVICE_TYPE)
    for tensor in tensors:
        if tensor.device != device:
            raise DeviceError(
                f"{op}: expected all tensors to be on the same device, but one ({tensor.dtype} {list(tensor.shape)}) is on "
                f"{tensor.device} and others are on {device}. Move it first: tensor.to({str(device)!r})"
            )
    return device_at(device.index)


def _one_dtype(op: str, call: dict[str, Any], collective: Collective) -> None:
    """Bytes would go to where another dtype is expected, without a word."""
    sent, received = (
        [t.dtype for name in names for t in tensors_within(call[name])]
        for names in (collective.reads, collective.writes)
    )
    pairwise = "coalesced" in collective.name and len(sent) == len(received)
    agree = sent == received if pairwise else len({*sent, *received}) <= 1
    if not agree:
        raise CollectiveError(
            f"{op}: what is sent ({', '.join(map(str, sent))}) and what is received ({', '.join(map(str, received))}) must "
            f"have the same dtype; convert one of them first: tensor.to(dtype)"
        )


def _fitting(collective: Collective, call: dict[str, Any]) -> None:
    """What is wrong with this rank's arguments is said before the others are waited for."""
    group = call[_GROUP]
    size, rank = group.size(), group.rank()
    why = absent_peer(call, size) or collective.check(call, size, rank)
    if why is not None:
        title, _ = _in_words(collective, call)
        raise CollectiveError(
            f"{title} on rank {get_global_rank(group, rank)} of process group {group.group_name!r}: {why}. Nothing was sent"
        )


def _keep(_call: dict[str, Any]) -> None:
    """Until it has landed, what a kernel reads and writes is alive."""


def _as_it_is(error: Exception) -> Exception:
    return error
