"""What the router would do with a call, without doing it: for tensors that have no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flroute.device.table import Device
from flroute.routing import refused
from flroute.routing.candidates import candidates_in_order, in_words, refusal
from flroute.routing.composites import split_of
from flroute.routing.device_ops import DEVICE_OPS
from flroute.routing.preference import rule_for, rules_about
from flroute.routing.schema import OpFacts, tensors_in
from flroute.settings import Settings
from flroute.vocabulary import Reason, Rejection, Route

DEVICE_KERNEL = "fl/device"
"""What serves ops that the device's memory does for every vendor, such as making room."""


@dataclass(frozen=True)
class Forecast:
    """Where a call would go.

    Attributes:
        route: as in a decision.
        kernel: the first candidate that takes these dtypes and arguments; a kernel may still decline at run time.
        reason: why this route.
        rejected: the candidates before.
    """

    route: Route
    kernel: str | None
    reason: Reason
    rejected: tuple[Rejection, ...] = ()

    @property
    def detail(self) -> str:
        """The rejections in words."""
        return in_words(self.rejected)


def forecast(
    settings: Settings, facts: OpFacts, device: Device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Forecast:
    """Where this call would go.

    Args:
        settings: as of a session.
        facts: of the op.
        device: where the call belongs.
        args: the call's arguments; tensors need dtype, shape and strides, no data.
        kwargs: likewise.
    """
    if facts.is_metadata:
        return Forecast(Route.VIEW, None, Reason.METADATA)
    inputs = tensors_in(args, {n: v for n, v in kwargs.items() if n not in facts.out_names})
    if facts.name == "aten::_local_scalar_dense" or len({t.device.type for t in inputs}) > 1:
        return Forecast(Route.COPY, None, Reason.TRANSFER)
    rejected: list[Rejection] = []
    rule = rule_for(rules_about(settings.policy, facts), facts, args, kwargs)
    for step in candidates_in_order(settings, facts, device, frozenset(t.dtype for t in inputs), rule):
        found = step if isinstance(step, Rejection) else refusal(facts, *step, args, kwargs)
        if found is None:
            return Forecast(Route.NATIVE, step[1], Reason.MATCHED, tuple(rejected))  # type: ignore[index]
        rejected.append(found)
    if facts.name in DEVICE_OPS and not facts.is_composite:
        return Forecast(Route.NATIVE, DEVICE_KERNEL, Reason.MATCHED)
    if facts.name not in refused.PARTS and split_of(facts, device.vendor) is not None:
        return Forecast(Route.DECOMPOSED, None, Reason.COMPOSITE, tuple(rejected))
    reason = rejected[-1].reason if rejected else Reason.NO_KERNEL
    return Forecast(Route.FALLBACK, None, reason, tuple(rejected))
