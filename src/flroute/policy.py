"""Policy: which kernels may be chosen for which calls, and in which order.

A rule says for ops, by name or glob, in which order candidates are tried; it may hold only for some dtypes, sizes, modules or
phases. The first rule that holds for a call decides. ``allow`` and ``deny`` say for all ops which vendors and kernels may be
chosen at all. This module does not import PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from flroute.vocabulary import Phase

HOST = "host"
"""The word for PyTorch's own host implementation, in an order."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        op: an overload (``aten::add.Tensor``; ``aten::mean.default`` for the one without a name), an op (``aten::add``: all its
            overloads), or a glob (``aten::*_backward``).
        order: candidates in the order to try them: a vendor, an implementation, a kernel, or ``host``; others are rejected.
        dtype: holds only for calls that read a tensor of one of these dtypes.
        min_numel: holds only for calls whose largest tensor has so many elements or more.
        max_numel: likewise, or fewer.
        module: holds only for calls from modules whose path matches this glob, ``encoder.layer.*.attention``.
        phase: holds only for calls in one of these phases.
        where: the file and line, variable or argument it comes from.
    """

    op: str
    order: tuple[str, ...]
    dtype: tuple[str, ...] = ()
    min_numel: int = 0
    max_numel: int | None = None
    module: str | None = None
    phase: tuple[Phase, ...] = ()
    where: str = field(default="", compare=False)

    @property
    def conditions(self) -> tuple[Any, ...]:
        """All that it asks of a call, beyond the op."""
        return self.dtype, self.min_numel, self.max_numel, self.module, self.phase

    @property
    def asks_for_caller(self) -> bool:
        """Whether it asks who makes the call."""
        return self.module is not None or bool(self.phase)

    @property
    def differs_by_call(self) -> bool:
        """Whether calls of one op and dtypes may differ in what it says."""
        return self.asks_for_caller or self.min_numel > 0 or self.max_numel is not None

    def names(self, *ops: str) -> bool:
        """Whether it is about an op, given by its name and perhaps that of its functional counterpart."""
        return any(names_op(self.op, op) for op in ops)

    def holds(
        self, dtypes: Collection[str], numel: int, module: str | None = None, phase: Phase | None = None
    ) -> bool:
        """Whether it holds for a call of its op: ``numel`` is that of the largest tensor."""
        return (
            (not self.dtype or not set(self.dtype).isdisjoint(dtypes))
            and self.min_numel <= numel
            and (self.max_numel is None or numel <= self.max_numel)
            and (self.module is None or (module is not None and fnmatchcase(module, self.module)))
            and (not self.phase or phase in self.phase)
        )

    def covers(self, other: Rule) -> bool:
        """Whether it holds for every call of an op for which ``other`` does."""
        return (
            (not self.dtype or (bool(other.dtype) and set(other.dtype) <= set(self.dtype)))
            and self.min_numel <= other.min_numel
            and (
                self.max_numel is None or (other.max_numel is not None and other.max_numel <= self.max_numel)
            )
            and (self.module is None or (other.module is not None and fnmatchcase(other.module, self.module)))
            and (not self.phase or (bool(other.phase) and set(other.phase) <= set(self.phase)))
        )


def names_op(pattern: str, op: str) -> bool:
    """Whether a rule's op means this overload.

    Example:
        >>> names_op("aten::add", "aten::add.Tensor"), names_op("aten::*_backward", "aten::silu_backward")
        (True, True)
        >>> names_op("aten::mean", "aten::mean.dim"), names_op("aten::mean.default", "aten::mean.dim")
        (True, False)
    """
    return pattern in (op, op.partition(".")[0], f"{op}.default") or fnmatchcase(op, pattern)


def names_kernel(word: str, names: Iterable[str]) -> bool:
    """Whether a word of an order, or of ``allow`` or ``deny``, means a candidate that goes by these names; it may be a glob."""
    return any(fnmatchcase(name, word) for name in names)


@dataclass(frozen=True)
class Policy:
    """Rules in force.

    Attributes:
        rules: the first that holds decides.
        allow: only kernels that one of these words names may be chosen; empty for all.
        deny: kernels that one of these words names may not.
    """

    rules: tuple[Rule, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def about(self, *ops: str) -> tuple[Rule, ...]:
        """The rules about an op, given by its names."""
        return tuple(rule for rule in self.rules if rule.names(*ops))

    def excludes(self, names: Collection[str]) -> str | None:
        """Why a candidate that goes by these names may not be chosen; ``None`` if it may."""
        for word in self.deny:
            if names_kernel(word, names):
                return f"denied by {word!r}"
        if self.allow and not any(names_kernel(word, names) for word in self.allow):
            return f"not among those allowed: {', '.join(self.allow)}"
        return None


def policy_of(
    order: Mapping[str, tuple[str, ...]], rules: Iterable[Rule], allow: Iterable[str], deny: Iterable[str]
) -> Policy:
    """The policy that settings make: rules come before the plain order, which is rules without conditions."""
    plain = [Rule(op, tuple(words)) for op, words in order.items()]
    return Policy((*rules, *plain), tuple(allow), tuple(deny))


# Reading ------------------------------------------------------------------------------------------------------------

KEYS = ("op", "order", "dtype", "min_numel", "max_numel", "module", "phase")

RULE = (
    'rules such as {op = "aten::*_backward", order = ["numpy", "host"]}; further keys are dtype, min_numel, max_numel, '
    "module and phase"
)


class RuleError(ValueError):
    """What is wrong with a rule, in words."""


def read_rule(value: object) -> Rule:
    """A rule out of a table of a file, or a mapping.

    Args:
        value: with ``op`` and ``order``, and further keys of ``Rule``; lists may be single words.

    Raises:
        RuleError: an unknown, missing or wrong key.

    Example:
        >>> read_rule({"op": "aten::mm", "order": "host", "dtype": "bfloat16"}).dtype
        ('bfloat16',)
    """
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise RuleError(f"a rule is a table, not {value!r}")
    if unknown := [key for key in value if key not in KEYS]:
        raise RuleError(f"a rule has no key {unknown[0]!r}; it has {', '.join(KEYS)}")
    op = value.get("op")
    if not (isinstance(op, str) and "::" in op):
        raise RuleError(f"'op' must name ops with their namespace, such as 'aten::mm', not {op!r}")
    order = _words(value, "order")
    if not order:
        raise RuleError("'order' must name at least one candidate; ['host'] leaves the op to the host")
    low, high = _size(value, "min_numel") or 0, _size(value, "max_numel")
    if high is not None and low > high:
        raise RuleError(f"min_numel {low} is above max_numel {high}: the rule never holds")
    module = value.get("module")
    if module is not None and not (isinstance(module, str) and module):
        raise RuleError(f"'module' must be the path of a module, or a glob, not {module!r}")
    try:
        phase = tuple(Phase(word) for word in _words(value, "phase"))
    except ValueError:
        raise RuleError(f"'phase' is one of {', '.join(Phase)}, not {value['phase']!r}") from None
    return Rule(op, order, _words(value, "dtype"), low, high, module, phase)


def _words(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = value.get(key, ())
    words = (found,) if isinstance(found, str) else found
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
        raise RuleError(f"{key!r} must be a word or a list of words, not {found!r}")
    return tuple(word.removeprefix("torch.") for word in words) if key == "dtype" else tuple(words)


def _size(value: Mapping[str, Any], key: str) -> int | None:
    found = value.get(key)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 0):
        raise RuleError(f"{key!r} must be a number of elements, not {found!r}")
    return found


def contradiction(rules: Iterable[Rule]) -> tuple[Rule, Rule] | None:
    """Two rules that say different things of the very same calls."""
    seen: dict[Any, Rule] = {}
    for rule in rules:
        earlier = seen.setdefault((rule.op, rule.conditions), rule)
        if earlier.order != rule.order:
            return earlier, rule
    return None


def placed(rule: Rule, where: str) -> Rule:
    """The rule, with the place it comes from."""
    return replace(rule, where=where)
