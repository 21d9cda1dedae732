"""Hook specifications: all a plugin in the entry-point group ``flroute`` can implement.

A plugin is any object, usually a module, whose functions are marked with ``flroute.vendor.hookimpl``.
Hooks run when a vendor is loaded or a route is resolved, never per call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from flroute.vendor import Decomposition, Kernel, Vendor
    from flroute.vocabulary import Decision

PROJECT = "flroute"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def flroute_vendors() -> Iterable[Vendor]:  # type: ignore[empty-body]
    """The vendors this package brings, each with its devices, memory and kernels."""


@hookspec
def flroute_kernels(vendor: str) -> Iterable[Kernel]:  # type: ignore[empty-body]
    """More kernels for ``vendor``, placed before the vendor's own."""


@hookspec
def flroute_decompositions(vendor: str) -> Iterable[Decomposition]:  # type: ignore[empty-body]
    """Ops to be split into others on the devices of ``vendor``, where no kernel takes them."""


@hookspec(firstresult=True)
def flroute_candidate_order(op: str, device: str, candidates: Sequence[str]) -> Sequence[str] | None:
    """Reorder the candidate kernels of ``op``; the first plugin that answers decides.

    Args:
        op: ``aten::mm``.
        device: ``fl:0``.
        candidates: kernel names such as ``reference/numpy:mm``, in the present order.

    Returns:
        A reordering or a subset of ``candidates``, or ``None`` to leave the order to others.
    """


@hookspec
def flroute_session(device: str) -> AbstractContextManager[None] | None:
    """What is to be in force in the process while a session is open.

    Args:
        device: the session's, by its vendor's name: ``reference:0``.

    Returns:
        A context that is entered when the session opens and left when it closes, or ``None``.
    """


@hookspec
def flroute_decision_taken(decision: Decision) -> None:
    """Observe a decision when it is first taken."""
