"""What another policy would have chosen for the calls of a recorded run, without running it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.routing.candidates import candidates_in_order, in_words
from flroute.routing.composites import split_of
from flroute.routing.preference import rules_about
from flroute.routing.schema import OpFacts, facts_of
from flroute.settings import Settings
from flroute.torch_compat import find_op
from flroute.vocabulary import Decision, Reason, Rejection, Route

_OF_THE_CALL = frozenset({Reason.LAYOUT, Reason.PREDICATE, Reason.SIZE, Reason.UNSUPPORTED})
"""What a kernel was rejected for under the other policy would have been the same under this one."""


@dataclass(frozen=True)
class Replayed:
    """A recorded decision, and what would have become of its calls.

    Attributes:
        decision: as recorded.
        route: that it would have taken.
        kernel: likewise.
        detail: why, in words.
        certain: false where a kernel would be asked that was not asked in the recorded run: its predicate may say no.
        told: false where the record does not say enough; route and kernel are those recorded.
    """

    decision: Decision
    route: Route
    kernel: str | None
    detail: str = ""
    certain: bool = True
    told: bool = True

    @property
    def changed(self) -> bool:
        """Whether the calls would have been served in another way."""
        return (self.route, self.kernel) != (self.decision.route, self.decision.kernel)

    @property
    def is_new_fallback(self) -> bool:
        """Whether the host would have done work that it did not do."""
        return self.route is Route.FALLBACK and self.decision.route != Route.FALLBACK


def replay(decisions: Iterable[Decision], settings: Settings) -> list[Replayed]:
    """What ``settings`` would have made of each decision, with the vendors of this environment.

    Args:
        decisions: of a trace or a report (``flroute.routing.trace.read``).
        settings: whose policy, precision and order apply.

    Raises:
        DeviceError: a decision is on a device that this environment lacks.

    Example:
        >>> import flroute, torch
        >>> with flroute.enable(device="reference") as session:
        ...     y = torch.ones(2).exp()
        >>> found = replay(session.decisions, Settings(deny=("numpy",)))
        >>> [(r.decision.op, str(r.route), r.changed) for r in found if r.decision.op == "aten::exp"]
        [('aten::exp', 'fallback', True)]
    """
    return [_replayed(decision, settings) for decision in decisions]


def _replayed(decision: Decision, settings: Settings) -> Replayed:
    as_recorded = Route(decision.route), decision.kernel
    if decision.rest:
        return Replayed(decision, *as_recorded, "of many signatures, which were added up", told=False)
    op = find_op(decision.op)
    if op is None:
        return Replayed(decision, *as_recorded, "this PyTorch lacks the op", told=False)
    if not _is_a_choice(decision):
        return Replayed(decision, *as_recorded)
    index = int(decision.device.partition(":")[2])
    return _choice(decision, facts_of(op), device_at(index), settings)


def _is_a_choice(decision: Decision) -> bool:
    """Whether kernels were asked: not for what the device does itself, nor for what a kernel asked of the host."""
    of_device = (decision.kernel or "").startswith("fl/") or decision.reason is Reason.IN_KERNEL
    asked = decision.route in (Route.NATIVE, Route.FALLBACK, Route.DECOMPOSED) or decision.op == "aten::copy_"
    return asked and not of_device and decision.device.startswith(f"{DEVICE_TYPE}:")


def _choice(decision: Decision, facts: OpFacts, device: Device, settings: Settings) -> Replayed:
    read = len(decision.dtypes) - len(facts.out_names)  # what an op is to write comes last
    names = decision.dtypes[: max(read, 0)]
    numel = max((math.prod(shape) for shape in decision.shapes[: max(read, 0)]), default=0)
    rules = rules_about(settings.policy, facts)
    rule = next((r for r in rules if r.holds(names, numel, decision.module, decision.phase)), None)
    dtypes = frozenset(getattr(torch, name) for name in names)
    asked = {r.kernel: r for r in decision.rejected if r.reason in _OF_THE_CALL}
    rejected: list[Rejection] = []
    for step in candidates_in_order(settings, facts, device, dtypes, rule):
        if isinstance(step, Rejection):
            rejected.append(step)
            continue
        kernel, name = step
        if name in asked:
            rejected.append(asked[name])
        elif numel < kernel.min_numel:
            rejected.append(Rejection(name, Reason.SIZE, f"is for {kernel.min_numel} elements or more"))
        else:
            route = Route.COPY if facts.name == "aten::copy_" else Route.NATIVE
            certain = name == decision.kernel or (kernel.when is None and not kernel.layouts)
            return Replayed(decision, route, name, in_words(rejected), certain)
    route = Route.FALLBACK if split_of(facts, device.vendor) is None else Route.DECOMPOSED
    return Replayed(decision, route, None, in_words(rejected))
