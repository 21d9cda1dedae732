"""What to do about an op that would fall back: what would be native in its place, and how PyTorch splits it.

Each suggestion is tried on the call itself, whose tensors have no data, before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from flroute.device.table import Device
from flroute.routing.composites import split_of
from flroute.routing.forecast import DEVICE_KERNEL, Forecast, forecast
from flroute.routing.schema import OpFacts, facts_of, tensors_in
from flroute.settings import Settings
from flroute.torch_compat import (
    TorchDispatchMode,
    decomposition_of,
    implementation_in_aten,
    is_overload,
    map_tensors,
)
from flroute.vocabulary import Precision, Reason, Route

_OTHER_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Tried in this order for an op that no kernel takes in the dtype it has."""


@dataclass(frozen=True)
class Call:
    """A call that would fall back.

    Attributes:
        settings: of the session it is to run in.
        device: where it belongs.
        facts: of the op.
        args: with tensors that need no data.
        kwargs: likewise.
    """

    settings: Settings
    device: Device
    facts: OpFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def forecast(self) -> Forecast:
        """Where it would go."""
        return forecast(self.settings, self.facts, self.device, self.args, self.kwargs)

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        """The same call with other tensors."""
        args, kwargs = map_tensors(change, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)


def suggestions_for(call: Call) -> tuple[str, ...]:
    """What would make the call native, in sentences; empty where nothing is known but to write a kernel."""
    return (*_equivalents(call), *_decomposition(call))


# The same op, otherwise ---------------------------------------------------------------------------------------------


def _equivalents(call: Call) -> Iterator[str]:
    reasons = {rejection.reason for rejection in call.forecast().rejected}
    for reason, variations in _VARIATIONS.items():
        if reason in reasons:
            for varied, sentence in variations(call):
                found = varied.forecast()
                if found.route is Route.NATIVE:
                    yield sentence.format(kernel=found.kernel)
                    break


_Variations = Iterator[tuple[Call, str]]


def _less_exact(call: Call) -> _Variations:
    for precision in (Precision.HIGH, Precision.MEDIUM):
        varied = replace(call, settings=replace(call.settings, precision=precision))
        yield varied, f'enable(precision="{precision}") admits {{kernel}}'


def _contiguous(call: Call) -> _Variations:
    varied = call.with_tensors(lambda t: t.contiguous())
    yield varied, "make its arguments contiguous (tensor.contiguous()): {kernel} takes them then"


def _other_dtypes(call: Call) -> _Variations:
    tensors = tensors_in(call.args, call.kwargs)
    if len({t.dtype for t in tensors}) > 1:
        widest = max((t.dtype for t in tensors), key=lambda dtype: (dtype.is_floating_point, dtype.itemsize))
        yield (
            call.with_tensors(lambda t: t.to(widest)),
            f"give it {_name(widest)} throughout: {{kernel}} takes that",
        )
    for dtype in _OTHER_DTYPES:
        varied = call.with_tensors(partial(_converted, dtype=dtype))
        yield varied, f"compute it in {_name(dtype)}: {{kernel}} takes that"


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _another_policy(call: Call) -> _Variations:
    free = replace(call.settings, order={}, rules=(), allow=(), deny=())
    yield replace(call, settings=free), "let the policy (order, rules, allow, deny) admit {kernel}"


_VARIATIONS: dict[Reason, Callable[[Call], _Variations]] = {
    Reason.PRECISION: _less_exact,
    Reason.LAYOUT: _contiguous,
    Reason.DTYPE: _other_dtypes,
    Reason.POLICY: _another_policy,
}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Other ops ------------------------------------------------------------------------------------------------------------


def _decomposition(call: Call) -> Iterator[str]:
    function = decomposition_of(call.facts.op)
    if function is None:
        return
    parts = _Parts(call)
    try:
        with parts:
            function(*call.args, **call.kwargs)
    except Exception:  # noqa: BLE001 -- PyTorch's own code, tried out: one that cannot take this call, whatever it raises, is none
        return
    if call.facts.name in parts.computing:  # it only says the same in another way
        return
    name = f"{function.__module__}.{function.__qualname__}"
    missing = [op for op, route in parts.computing.items() if route is Route.FALLBACK]
    if missing:
        yield f"PyTorch decomposes it ({name}), and of the parts {', '.join(missing)} would fall back"
    else:
        yield (
            f"register PyTorch's decomposition of it, {name} (hook flroute_decompositions): all its parts are native: "
            f"{', '.join(parts.computing)}"
        )


class _Parts(TorchDispatchMode):
    """The computing ops that a function calls, each with its route."""

    def __init__(self, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call
        self.computing: dict[str, Route] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_overload(func) or func.namespace != "aten":
            in_aten = implementation_in_aten(func)
            if in_aten is None:
                return func(*args, **kwargs)
            with self:
                return in_aten(*args, **kwargs)
        part = replace(self._call, facts=facts_of(func), args=args, kwargs=kwargs)
        where = part.forecast()
        if where.route in (Route.NATIVE, Route.FALLBACK) and where.kernel != DEVICE_KERNEL:
            self.computing[part.facts.name] = where.route
        split = split_of(part.facts, part.device.vendor) if where.route is Route.DECOMPOSED else None
        if split is None:
            return func(*args, **kwargs)
        with self:
            return split(args, kwargs)
