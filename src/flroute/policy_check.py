"""What is wrong with a policy that reads well: rules about no op, targets that are not there, rules that never decide."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from flroute import registry
from flroute.errors import SettingsError
from flroute.kernels import Kernel
from flroute.policy import HOST, Policy, Rule, names_kernel, names_op, placed
from flroute.routing.preference import names_of
from flroute.routing.schema import facts_of
from flroute.settings import Origin
from flroute.torch_compat import all_op_names, find_op


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        where: file and line, variable or argument.
        kind: ``unknown op``, ``dead target``, ``shadowed``, ``unreachable``, ``contradiction`` or ``no effect``.
        message: what, and what to do.
    """

    where: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.message}"


def check_policy(origins: Mapping[str, Origin]) -> list[Finding]:
    """All that is wrong with the rules, orders and lists among settings.

    Args:
        origins: as ``explain_settings`` gives them.
    """
    rules = _rules(origins)
    allow, deny = _in(origins, "allow"), _in(origins, "deny")
    policy = Policy(rules, allow.value, deny.value)
    findings = [*_dead_words("allow", allow), *_dead_words("deny", deny)]
    for at, rule in enumerate(rules):
        if not _ops(rule.op):
            findings.append(Finding(rule.where, "unknown op", _unknown(rule.op)))
            continue
        findings += _targets(rule, policy)
        findings += _precedence(rule, rules[:at])
        if all(facts_of(op).is_metadata for name in _ops(rule.op) if (op := find_op(name)) is not None):
            message = f"{rule.op!r} is about views, which the device itself serves: take the rule out"
            findings.append(Finding(rule.where, "no effect", message))
    return findings


def refuse_unknown_ops(origins: Mapping[str, Origin]) -> None:
    """Fail over a rule or an order for an op that this PyTorch does not have.

    Raises:
        SettingsError: names the op, where it stands, and the nearest that there is.
    """
    for rule in _rules(origins):
        if not _ops(rule.op):
            raise SettingsError(f"{rule.where}: {_unknown(rule.op)}.")


def _rules(origins: Mapping[str, Origin]) -> tuple[Rule, ...]:
    """Every rule in force, the plain orders last, each with its place."""
    order = _in(origins, "order")
    plain = [placed(Rule(op, words), order.places[op]) for op, words in dict(order.value).items()]
    return (*_in(origins, "rules").value, *plain)


def _in(origins: Mapping[str, Origin], name: str) -> Origin:
    return origins.get(name, Origin((), "default"))


@cache
def _ops(pattern: str) -> frozenset[str]:
    return frozenset(name for name in all_op_names() if names_op(pattern, name))


def _unknown(pattern: str) -> str:
    names = {name.partition(".")[0] for name in all_op_names()} | set(all_op_names())
    close = difflib.get_close_matches(pattern, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`flroute ops` lists those there are"
    return f"this PyTorch has no op {pattern!r}; {hint}"


def _targets(rule: Rule, policy: Policy) -> Iterator[Finding]:
    """Words of the order that name nothing, nothing for these ops, or nothing that may be chosen."""
    reached, after = _at_host(rule.order)
    if after:
        message = f"nothing is tried after 'host', which takes every call: {', '.join(after)}"
        yield Finding(rule.where, "unreachable", message)
    of_ops = _kernels_of(rule.op)
    for word in reached:
        named = [names for names in of_ops if names_kernel(word, names)]
        if not any(names_kernel(word, names) for names in _all_kernels()):
            yield Finding(rule.where, "dead target", _nothing(word))
        elif not named:
            yield Finding(rule.where, "dead target", f"{word!r} has no kernel for {rule.op}")
        elif all(reasons := [policy.excludes(names) for names in named]):
            yield Finding(rule.where, "contradiction", f"{word!r} is wanted here, and {reasons[0]}")


def _at_host(order: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if HOST not in order:
        return order, ()
    at = order.index(HOST)
    return order[:at], order[at + 1 :]


def _precedence(rule: Rule, earlier: tuple[Rule, ...]) -> Iterator[Finding]:
    """Whether rules before this one leave it anything to decide."""
    left = _ops(rule.op)
    over = [other for other in earlier if other.covers(rule) and left & _ops(other.op)]
    for other in over:
        if left <= _ops(other.op):
            message = (
                f"the rule for {other.op!r} at {other.where} comes first and takes every call of {rule.op!r}"
            )
            yield Finding(rule.where, "shadowed", message)
            return
    if over and left <= frozenset().union(*(_ops(other.op) for other in over)):
        places = ", ".join(other.where for other in over)
        yield Finding(
            rule.where, "unreachable", f"the rules at {places} together take every call of {rule.op!r}"
        )


def _dead_words(name: str, origin: Origin) -> Iterator[Finding]:
    for word in origin.value:
        if word == HOST:
            yield Finding(
                origin.where,
                "dead target",
                f"'host' is no kernel: {name} it with fallback='allow' or 'error'",
            )
        elif not any(names_kernel(word, names) for names in _all_kernels()):
            yield Finding(origin.where, "dead target", _nothing(word))


def _nothing(word: str) -> str:
    close = difflib.get_close_matches(word, {name for names in _all_kernels() for name in names}, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`flroute ops --kernels` lists those there are"
    return f"{word!r} names no vendor, implementation or kernel here; {hint}"


def _all_kernels() -> set[tuple[str, ...]]:
    """The names of every kernel in this environment."""
    return {
        _names(vendor, kernel)
        for vendor, by_op in registry.load().kernels.items()
        for kernels in by_op.values()
        for kernel in kernels
    }


def _kernels_of(pattern: str) -> set[tuple[str, ...]]:
    """The names of every kernel that may serve these ops."""
    found, loaded = set(), registry.load()
    for name in _ops(pattern):
        op = find_op(name)
        functional = facts_of(op).functional if op is not None else None
        for vendor in loaded.vendors:
            for own in (name, functional.name() if functional is not None else name):
                found |= {_names(vendor, kernel) for kernel in loaded.candidates(vendor, own)}
    return found


def _names(vendor: str, kernel: Kernel) -> tuple[str, ...]:
    return names_of(kernel, f"{vendor}/{kernel.name}")
