"""Which of a vendor's kernels serve a call, in what order, and why the others do not.

What dtypes, precision and policy say is settled once per signature (``candidates_in_order``); what sizes, layouts and a kernel's
own predicate say, once per call (``refusal``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flroute.device.dtypes import NUMPY_DTYPES
from flroute.device.table import Device
from flroute.errors import VendorError
from flroute.kernels import Kernel
from flroute.policy import Rule
from flroute.registry import Registry, load
from flroute.routing.predicates import ask_and_time
from flroute.routing.preference import Step, preferred
from flroute.routing.schema import OpFacts, tensors_in
from flroute.settings import Settings
from flroute.vocabulary import Reason, Rejection


def in_words(rejected: Sequence[Rejection]) -> str:
    """What each candidate was rejected for."""
    return "; ".join(f"{r.kernel}: {r.detail or r.reason}" for r in rejected)


def candidates_in_order(
    settings: Settings,
    facts: OpFacts,
    device: Device,
    dtypes: frozenset[torch.dtype],
    rule: Rule | None,
) -> list[Step]:
    """The vendor's kernels for an op in the order they are tried, those ruled out from the start as rejections.

    ``rule`` is the one of the settings that holds for the call (``rule_for``).
    """
    registry = load()
    kernels = list(registry.candidates(device.vendor, facts.name))
    if facts.functional is not None:
        kernels += registry.candidates(device.vendor, facts.functional.name())
    steps: list[Step] = [(kernel, f"{device.vendor}/{kernel.name}") for kernel in kernels]
    steps = _ordered_by_plugins(steps, registry, facts, device)
    steps = preferred(steps, rule, settings.policy, facts)
    return [
        step if isinstance(step, Rejection) else _ruled_out(*step, settings, device, dtypes) or step
        for step in steps
    ]


def _ordered_by_plugins(steps: list[Step], registry: Registry, facts: OpFacts, device: Device) -> list[Step]:
    names = [name for _, name in steps]  # type: ignore[misc]
    hook = registry.manager.hook.flroute_candidate_order
    order = hook(op=facts.name, device=device.name, candidates=names)
    if order is None:
        return steps
    if (
        isinstance(order, str)
        or not isinstance(order, Sequence)
        or not all(isinstance(n, str) for n in order)
    ):
        plugin = ", ".join(impl.plugin_name for impl in hook.get_hookimpls())
        raise VendorError(
            plugin,
            "flroute_candidate_order",
            repr(order),
            f"it must answer with names of candidates, or None: {names}",
        )
    left_out: list[Step] = [
        Rejection(name, Reason.POLICY, "left out by flroute_candidate_order")
        for name in names
        if name not in order
    ]
    return left_out + [step for name in dict.fromkeys(order) for step in steps if step[1] == name]  # type: ignore[index]


def _ruled_out(
    kernel: Kernel, name: str, settings: Settings, device: Device, dtypes: frozenset[torch.dtype]
) -> Rejection | None:
    """Why a kernel is not for these dtypes and this precision."""
    if kernel.precision.rank < settings.precision.rank:
        return Rejection(
            name, Reason.PRECISION, f"{kernel.precision} is below the session's {settings.precision}"
        )
    if kernel.dtypes and len(dtypes) > 1 and not kernel.mixed:
        return Rejection(name, Reason.DTYPE, "mixed dtypes: " + ", ".join(sorted(map(str, dtypes))))
    if kernel.dtypes and not dtypes <= set(kernel.dtypes):
        return Rejection(
            name, Reason.DTYPE, f"{next(iter(dtypes - set(kernel.dtypes)))} is not among the kernel's dtypes"
        )
    foreign = dtypes - NUMPY_DTYPES.keys() if device.memory.host_visible and not kernel.dtypes else ()
    if foreign:  # it would come as integers of its width, which only a kernel that names the dtype expects
        return Rejection(
            name, Reason.DTYPE, f"numpy has no {next(iter(foreign))}, and the kernel does not name it"
        )
    return None


def refusal(
    facts: OpFacts, kernel: Kernel, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Rejection | None:
    """Why the kernel is not for these arguments, as far as size, layouts and its predicate say."""
    inputs = {key: value for key, value in kwargs.items() if key not in facts.out_names}
    if kernel.min_numel and all(t.numel() < kernel.min_numel for t in tensors_in(args, inputs)):
        return Rejection(name, Reason.SIZE, f"is for {kernel.min_numel} elements or more")
    if kernel.layouts and not all(t.is_contiguous() for t in tensors_in(args, kwargs)):
        return Rejection(name, Reason.LAYOUT, "needs contiguous arguments")
    if kernel.when is None:
        return None
    if (
        facts.out_says_dtype and kernel.op != facts.name
    ):  # the kernel is going to be told, so is its predicate
        inputs["dtype"] = kwargs[facts.out_names[0]].dtype
    answer = ask_and_time(kernel.when, facts, name, args, inputs)
    if answer is True:
        return None
    return Rejection(name, Reason.PREDICATE, answer if isinstance(answer, str) else "its predicate said no")
