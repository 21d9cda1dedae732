"""Which of PyTorch's functions a vendor has no kernel for, as far as their names tell."""

from __future__ import annotations

from collections import defaultdict

from flroute.coverage import coverage_of
from flroute.vocabulary import OpState


def ops_without_kernels(vendor: str) -> frozenset[str]:
    """Ops without namespace and overload, ``linalg_eig``, that only the host computes.

    Raises:
        UnknownVendorError: there is none of this name.
    """
    states: dict[str, set[OpState]] = defaultdict(set)
    for op in coverage_of(vendor).ops:
        states[op.op.removeprefix("aten::").partition(".")[0]].add(op.state)
    return frozenset(name for name, found in states.items() if found - {OpState.ABSENT} == {OpState.FALLBACK})
