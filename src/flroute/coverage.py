"""Coverage: what becomes of each of PyTorch's ops on a vendor's device, said from what is registered, without running any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from flroute import registry
from flroute.op_families import FAMILIES, family_of
from flroute.routing import refused
from flroute.routing.composites import PARTS
from flroute.routing.device_ops import DEVICE_OPS
from flroute.routing.schema import OpFacts, facts_of
from flroute.torch_compat import all_op_names, find_op, has_kernel
from flroute.vocabulary import OpState

_HOST_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@dataclass(frozen=True)
class OpCoverage:
    """One overload.

    Attributes:
        op: ``aten::add.Tensor``.
        family: of ``op_families.py``.
        state: what becomes of it.
        kernels: the vendor's candidates, best first.
    """

    op: str
    family: str
    state: OpState
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """All ops of this PyTorch, as one vendor serves them."""

    vendor: str
    ops: tuple[OpCoverage, ...]

    @property
    def served(self) -> float:
        """The share of the host's ops that are native, decomposed, composite or views."""
        counts = Counter(op.state for op in self.ops)
        on_host = len(self.ops) - counts[OpState.ABSENT]
        return 1 - counts[OpState.FALLBACK] / on_host if on_host else 1.0

    @property
    def summary(self) -> str:
        """What share of the ops needs no fallback, in one sentence."""
        counts = Counter(op.state for op in self.ops)
        states = ", ".join(f"{counts[state]} {state}" for state in OpState if state not in _NOT_SERVED)
        on_host = len(self.ops) - counts[OpState.ABSENT]
        return (
            f"{self.served:.1%} of the {on_host} aten ops that PyTorch {torch.__version__.partition('+')[0]} has for the host "
            f"need no fallback on {self.vendor}: {states}. {counts[OpState.FALLBACK]} fall back; {counts[OpState.ABSENT]} more "
            f"have no kernel on the host either."
        )

    def matching(self, pattern: str) -> tuple[OpCoverage, ...]:
        """The ops whose name without namespace fits a glob, or has ``pattern`` as its packet: ``add``, ``*pool*``."""
        return tuple(op for op in self.ops if _fits(op.op, pattern))

    def by_family(self) -> dict[str, Counter[OpState]]:
        """How many ops of each family are in each state, in the order of ``FAMILIES``."""
        counts: dict[str, Counter[OpState]] = {family: Counter() for family in FAMILIES}
        for op in self.ops:
            counts[op.family][op.state] += 1
        return {family: count for family, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "vendor": self.vendor,
            "torch": torch.__version__,
            "served": round(self.served, 4),
            "families": {
                family: {str(s): n for s, n in count.items()} for family, count in self.by_family().items()
            },
            "ops": [
                {"op": o.op, "family": o.family, "state": str(o.state), "kernels": o.kernels}
                for o in self.ops
            ],
        }

    def to_markdown(self) -> str:
        """A table by family, then every op."""
        made_by = f"Printed by `flroute ops --vendor {self.vendor} --format markdown`."
        lines = [f"# Ops on {self.vendor}", "", self.summary, "", *_EXPLANATION, "", made_by, ""]
        lines += [f"| family | {' | '.join(OpState)} |", "|---|" + "---:|" * len(OpState)]
        for family, count in self.by_family().items():
            lines.append(f"| {family} | {' | '.join(str(count[state] or '') for state in OpState)} |")
        for family in self.by_family():
            lines += ["", f"## {family.capitalize()}", ""]
            for state in OpState:
                names = [op.op for op in self.ops if op.family == family and op.state is state]
                if names:
                    lines.append(f"- **{state}**: {_grouped(names)}")
        return "\n".join(lines) + "\n"


_NOT_SERVED = (OpState.FALLBACK, OpState.ABSENT)

_EXPLANATION = (
    "- **native**: the vendor has a kernel for it or for the functional op that it is a form of, or the device's memory does it.",
    "- **decomposed**: split into other ops when it is called; each of these is routed on its own.",
    "- **composite**: PyTorch defines it by other ops and splits it before any device sees it, except in inference mode.",
    "- **view**: metadata only.",
    "- **fallback**: the host does it.",
    "- **absent**: PyTorch has no kernel of it for dense tensors on the host; other backends may.",
    "",
    "A kernel may still leave some dtypes or arguments to the host: a session's report says which, and why.",
)


def coverage_of(vendor: str) -> Coverage:
    """Coverage of one vendor.

    Raises:
        UnknownVendorError: there is none of this name.
    """
    loaded = registry.load()
    name = loaded.vendor(vendor).name
    ops = (find_op(op) for op in sorted(all_op_names()) if op.startswith("aten::"))
    return Coverage(name, tuple(_coverage(loaded, name, facts_of(op)) for op in ops if op is not None))


def _coverage(loaded: registry.Registry, vendor: str, facts: OpFacts) -> OpCoverage:
    kernels = list(loaded.candidates(vendor, facts.name))
    if facts.functional is not None:
        kernels += loaded.candidates(vendor, facts.functional.name())
    names = tuple(dict.fromkeys(f"{vendor}/{kernel.name}" for kernel in kernels))
    state = OpState.NATIVE if kernels else _state_without_kernels(facts)
    if state is OpState.FALLBACK and facts.name in loaded.decompositions[vendor]:
        state = OpState.DECOMPOSED
    return OpCoverage(facts.name, family_of(facts.name), state, names)


def _state_without_kernels(facts: OpFacts) -> OpState:
    if facts.name in DEVICE_OPS and not facts.is_metadata:
        return OpState.NATIVE
    if facts.is_metadata:
        return OpState.VIEW
    if has_kernel(facts.name, "CompositeImplicitAutograd"):
        return OpState.COMPOSITE
    if facts.out_names and facts.functional is not None and facts.is_composite:
        return _state_without_kernels(facts_of(facts.functional))  # it calls that, and copies
    if (facts.name in PARTS or facts.is_composite) and facts.name not in refused.PARTS:
        return OpState.DECOMPOSED
    return OpState.FALLBACK if any(has_kernel(facts.name, key) for key in _HOST_KEYS) else OpState.ABSENT


def _fits(op: str, pattern: str) -> bool:
    name = op.removeprefix("aten::")
    packet = name.partition(".")[0]
    pattern = pattern.removeprefix("aten::")
    return fnmatchcase(name, pattern) or packet.rstrip("_") == pattern.rstrip("_")


def _grouped(names: Iterable[str]) -> str:
    """Overloads of one packet behind its name: ``add`` (Tensor, out)."""
    packets: dict[str, list[str]] = {}
    for name in names:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        packets.setdefault(packet, []).append(overload)
    parts = []
    for packet, overloads in packets.items():
        named = ", ".join(overload or "default" for overload in overloads)
        parts.append(f"`{packet}`" if overloads == [""] else f"`{packet}` ({named})")
    return ", ".join(parts)
