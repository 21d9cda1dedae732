"""Ops that the device serves itself, for every vendor: views, allocation, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.routing import transfers
from flroute.routing.accounting import Counts
from flroute.routing.arrays import as_tensor
from flroute.routing.overlap import refuse_partial
from flroute.routing.placement import device_of_call
from flroute.routing.plans import ComputeHandler, Plan
from flroute.routing.recording import note, now
from flroute.routing.refused import refuse_nested
from flroute.routing.schema import OpFacts, tensors_in
from flroute.routing.sparse import concerns_sparse, is_sparse, overwrite
from flroute.routing.tallies import MAX_SIGNATURES, dtype_names, shapes_in
from flroute.routing.views import view_call
from flroute.vocabulary import Reason, Route

if TYPE_CHECKING:
    from flroute.routing.router import Router

aten = torch.ops.aten


def view_handler(router: Router, facts: OpFacts) -> Plan:
    """A call of a metadata op, counted by the tensor's signature; host tensors, of whatever layout, stay with PyTorch."""
    op, on_device, on_sparse = facts.op, view_call(facts.op), ComputeHandler(router, facts)
    ticks: dict[tuple[Any, ...], tuple[Callable[..., Any], Callable[[], int]]] = {}

    def first(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Also every call where modules are told apart, and those of nested tensors, which have no shape."""
        device, dtype = tensor.device, tensor.dtype
        shapes = shapes_in((tensor,), {})  # before the call: some ops change it
        call = on_device if device.type == DEVICE_TYPE else op
        try:
            result = call(*args, **kwargs)
        except RuntimeError:  # sparse tensors have neither strides nor storage
            if call is op or not is_sparse(tensor):
                raise
            return on_sparse(args, kwargs)
        tally = router.counts(facts, Route.VIEW, str(device), Reason.METADATA, dtype_names([tensor]))(shapes)
        tally.tick()
        if not router.settings.modules and not tensor.is_nested:
            if len(ticks) >= MAX_SIGNATURES:
                ticks.clear()
            ticks[device, dtype, shapes[0]] = call, tally.tick
        return result

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else next(iter(kwargs.values()))
        try:
            known = ticks.get((tensor.device, tensor.dtype, tensor.shape))
        except RuntimeError:
            known = None
        except AttributeError:  # a number
            return op(as_tensor(tensor), *args[1:], **kwargs)
        if known is None:
            return first(tensor, args, kwargs)
        call, tick = known
        try:
            result = call(*args, **kwargs)
        except RuntimeError:  # likewise: they may have dtype and sizes of a strided one
            if call is op or not is_sparse(tensor):
                raise
            return on_sparse(args, kwargs)
        tick()
        return result

    return run


def _own(function: Callable[..., Any]) -> Callable[[Router, OpFacts], Plan]:
    """A handler for an op that ``transfers`` implements for every device; host tensors stay with PyTorch."""
    kernel = f"fl/device:{function.__name__}"

    def make(router: Router, facts: OpFacts) -> Plan:
        plans: dict[tuple[Any, ...], Plan] = {}
        on_sparse = ComputeHandler(router, facts)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if concerns_sparse(args, kwargs):
                return on_sparse(args, kwargs)
            tensors = tensors_in(args, kwargs)
            device = device_of_call(tensors, args, kwargs)
            if device is None:
                return facts.op(*args, **kwargs)
            key = (device.name, *[tensor.dtype for tensor in tensors])
            plan = plans.get(key)
            if plan is None:
                counts = router.counts(
                    facts, Route.NATIVE, device.name, Reason.MATCHED, dtype_names(tensors), kernel=kernel
                )
                work = router.recorded(counts, lambda args, kwargs: function(*args, **kwargs))
                plan = plans[key] = router.counted(counts, work)
            return plan(args, kwargs)

        return run

    return make


def _copy_handler(router: Router, facts: OpFacts) -> Plan:
    """``_copy_from(source, target)``: between host and device or two devices it moves bytes; on one device it is ``copy_``."""
    counts_of: dict[tuple[Any, ...], Counts] = {}
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
        counts = counts_of.get(key)
        if counts is None:
            where = (
                f"{source.device}->{target.device}" if source.device != target.device else str(target.device)
            )
            dtypes = dtype_names([source, target])
            counts = counts_of[key] = router.counts(
                facts, Route.COPY, where, Reason.TRANSFER, dtypes, kernel="fl/device:copy"
            )
        moved = transfers.Moved()
        start = now()
        transfers.move(source, target, moved)
        end = now()
        shapes = shapes_in((source, target), {})
        tally = counts(shapes)
        if router.settings.timing:
            tally.seconds = (tally.seconds or 0.0) + (end - start) / 1e9
        if router.recordings:
            nbytes = max(moved.to_host, moved.to_device) or target.numel() * target.dtype.itemsize
            note(router.recordings, counts.choice, counts.dtypes, shapes, start, end, nbytes)
        tally.tick()
        tally.bytes_to_host += moved.to_host
        tally.bytes_to_device += moved.to_device
        return target

    return run


def _copy_inplace_handler(router: Router, facts: OpFacts) -> Plan:
    """``copy_(target, source)``: on one device an op like any other, else a transfer."""
    on_one_device = ComputeHandler(router, facts)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], as_tensor(args[1])
        if DEVICE_TYPE not in (source.device.type, target.device.type):
            return facts.op(*args, **kwargs)
        if is_sparse(target) and target.layout is source.layout:
            return overwrite(target, source)
        if source.device == target.device:
            refuse_partial(target, source)
            if transfers.is_plain_copy(source, target):
                router(aten._copy_from.default, (source, target), {})
                return target
            return on_one_device(args, kwargs)
        router(aten._copy_from.default, (source, target), {})
        return target

    return run


def _to_copy_handler(router: Router, facts: OpFacts) -> Plan:
    """``_to_copy``: PyTorch's composite, which asks for pinned host memory when told not to block."""
    handler = ComputeHandler(router, facts).quickest()

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = as_tensor(args[0])
        if source.is_nested and device_of_call([], args, kwargs) is not None:
            refuse_nested(facts.name)
        return handler(
            (source,), {k: v for k, v in kwargs.items() if k not in ("non_blocking", "pin_memory")}
        )

    return run


def _scalar_handler(router: Router, facts: OpFacts) -> Plan:
    """``_local_scalar_dense``: one element crosses to the host."""
    counts_of: dict[tuple[torch.device, torch.dtype], Counts] = {}

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not isinstance(tensor, torch.Tensor):
            return tensor  # a number
        if tensor.device.type != DEVICE_TYPE:
            return facts.op(*args, **kwargs)
        start = now() if router.recordings else 0
        value = transfers.read_scalar(tensor)
        end = now() if router.recordings else 0
        key = tensor.device, tensor.dtype
        counts = counts_of.get(key)
        if counts is None:
            where, dtypes = f"{tensor.device}->cpu", dtype_names([tensor])
            counts = counts_of[key] = router.counts(
                facts, Route.COPY, where, Reason.TRANSFER, dtypes, kernel="fl/device:read_scalar"
            )
        shapes = shapes_in((tensor,), {})
        tally = counts(shapes)
        tally.tick()
        tally.bytes_to_host += tensor.dtype.itemsize
        if router.recordings:
            note(router.recordings, counts.choice, counts.dtypes, shapes, start, end, tensor.dtype.itemsize)
        return value

    return run


DEVICE_OPS: dict[str, Callable[[Router, OpFacts], Plan]] = {
    "aten::empty.memory_format": _own(transfers.empty_memory_format),
    "aten::empty_strided": _own(transfers.empty_with_strides),
    "aten::resize_": _own(transfers.resize),
    "aten::record_stream": _own(transfers.record_stream),
    "aten::copy_": _copy_inplace_handler,
    "aten::_to_copy": _to_copy_handler,
    "aten::_copy_from": _copy_handler,
    "aten::_copy_from_and_resize": _copy_handler,
    "aten::_local_scalar_dense": _scalar_handler,
}
