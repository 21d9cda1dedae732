"""What the settings say about a call: which rule holds, and what it makes of the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flroute.kernels import Kernel
from flroute.policy import HOST, Policy, Rule, names_kernel
from flroute.routing.caller import find_caller
from flroute.routing.schema import OpFacts, tensors_in
from flroute.routing.tallies import dtype_names
from flroute.vocabulary import Reason, Rejection

Step = tuple[Kernel, str] | Rejection
"""A candidate with its full name, or one that is ruled out."""


def rules_about(policy: Policy, facts: OpFacts) -> tuple[Rule, ...]:
    """The rules about an op, or about its functional counterpart, whose kernels serve it."""
    functional = facts.functional
    return policy.about(facts.name, *([functional.name()] if functional is not None else []))


def rule_for(
    rules: Sequence[Rule], facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Rule | None:
    """The first of ``rules`` that holds for this call; the caller is looked for only if one asks."""
    if not rules:
        return None
    tensors = tensors_in(args, {name: v for name, v in kwargs.items() if name not in facts.out_names})
    dtypes, numel = dtype_names(tensors), max((tensor.numel() for tensor in tensors), default=0)
    caller = find_caller() if any(rule.asks_for_caller for rule in rules) else None
    place = () if caller is None else (caller.module, caller.phase)
    return next((rule for rule in rules if rule.holds(dtypes, numel, *place)), None)


def names_of(kernel: Kernel, name: str) -> tuple[str, ...]:
    """What a word may call a candidate: vendor, implementation, the kernel's short name, and its full name."""
    return name.partition("/")[0], kernel.implementation, kernel.name, name


def preferred(steps: list[Step], rule: Rule | None, policy: Policy, facts: OpFacts) -> list[Step]:
    """The candidates in the order of a rule, after those that it and the policy rule out."""
    permitted = [step if isinstance(step, Rejection) else _excluded(*step, policy) or step for step in steps]
    if rule is None:
        return permitted
    wanted = rule.order[: rule.order.index(HOST)] if HOST in rule.order else rule.order
    picked: list[Step] = []
    for word in wanted:
        picked += [
            step
            for step in permitted
            if not isinstance(step, Rejection) and step not in picked and names_kernel(word, names_of(*step))
        ]
    why = f"not in order for {facts.name}" + (f" ({rule.where})" if rule.where else "")
    rejected: list[Step] = [
        step if isinstance(step, Rejection) else Rejection(step[1], Reason.POLICY, why)
        for step in permitted
        if step not in picked
    ]
    return rejected + picked


def _excluded(kernel: Kernel, name: str, policy: Policy) -> Rejection | None:
    why = policy.excludes(names_of(kernel, name))
    return None if why is None else Rejection(name, Reason.POLICY, why)
