"""Ops that the device serves itself, for every vendor: views, allocation, copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.routing import transfers
from flroute.routing.accounting import Tally, seen_of
from flroute.routing.overlap import refuse_partial
from flroute.routing.placement import device_of_call
from flroute.routing.plans import ComputeHandler, Plan
from flroute.routing.schema import OpFacts, tensors_in
from flroute.routing.views import view_call
from flroute.vocabulary import Reason, Route

if TYPE_CHECKING:
    from flroute.routing.router import Router

aten = torch.ops.aten


def view_handler(router: Router, facts: OpFacts) -> Plan:
    """A call of a metadata op, counted per device; host tensors, of whatever layout, stay with PyTorch."""
    op, on_device = facts.op, view_call(facts.op)
    plans: dict[tuple[torch.device, torch.dtype], tuple[Callable[..., Any], Callable[[], int]]] = {}

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else next(iter(kwargs.values()))
        plan = plans.get((tensor.device, tensor.dtype))
        if plan is None:
            call = on_device if tensor.device.type == DEVICE_TYPE else op
            result = call(*args, **kwargs)
            tally = router.tally(facts, Route.VIEW, str(tensor.device), Reason.METADATA, seen_of([tensor]))
            plans[tensor.device, tensor.dtype] = call, tally.tick
            tally.tick()
            return result
        call, tick = plan
        result = call(*args, **kwargs)
        tick()
        return result

    return run


def _own(function: Callable[..., Any]) -> Callable[[Router, OpFacts], Plan]:
    """A handler for an op that ``transfers`` implements for every device; host tensors stay with PyTorch."""
    kernel = f"fl/device:{function.__name__}"

    def make(router: Router, facts: OpFacts) -> Plan:
        plans: dict[str, Plan] = {}

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensors = tensors_in(args, kwargs)
            device = device_of_call(tensors, args, kwargs)
            if device is None:
                return facts.op(*args, **kwargs)
            plan = plans.get(device.name)
            if plan is None:
                seen = seen_of(tensors)
                tally = partial(
                    router.tally, facts, Route.NATIVE, device.name, Reason.MATCHED, seen, kernel=kernel
                )
                plan = plans[device.name] = router.counted(
                    tally, lambda args, kwargs: function(*args, **kwargs)
                )
            return plan(args, kwargs)

        return run

    return make


def _copy_handler(router: Router, facts: OpFacts) -> Plan:
    """``_copy_from(source, target)``: between host and device or two devices it moves bytes; on one device it is ``copy_``."""
    tallies: dict[tuple[Any, ...], Tally] = {}
    resizes = facts.op is aten._copy_from_and_resize.default

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001 -- non_blocking means nothing here
        source, target = args[0], args[1]
        if resizes:
            transfers.copy_and_resize(source, target)
        if source.device == target.device:
            refuse_partial(target, source)
        if source.device == target.device and not transfers.is_plain_copy(source, target):
            router.handler(aten.copy_.default)((target, source), {})
            return target
        key = (source.device, target.device, source.dtype, target.dtype)
        tally = tallies.get(key)
        if tally is None:
            where = (
                f"{source.device}->{target.device}" if source.device != target.device else str(target.device)
            )
            tally = tallies[key] = router.tally(
                facts, Route.COPY, where, Reason.TRANSFER, seen_of([source, target]), kernel="fl/device:copy"
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
            if target.device.type == DEVICE_TYPE:
                refuse_partial(target, source)
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
            facts,
            Route.COPY,
            f"{tensor.device}->cpu",
            Reason.TRANSFER,
            seen_of([tensor]),
            kernel="fl/device:read_scalar",
        )
        tally.tick()
        tally.bytes_to_host += tensor.dtype.itemsize
        return value

    return run


DEVICE_OPS: dict[str, Callable[[Router, OpFacts], Plan]] = {
    "aten::empty.memory_format": _own(transfers.empty_memory_format),
    "aten::empty_strided": _own(transfers.empty_with_strides),
    "aten::resize_": _own(transfers.resize),
    "aten::copy_": _copy_inplace_handler,
    "aten::_to_copy": _to_copy_handler,
    "aten::_copy_from": _copy_handler,
    "aten::_copy_from_and_resize": _copy_handler,
    "aten::_local_scalar_dense": _scalar_handler,
}
