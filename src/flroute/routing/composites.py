"""Ops that are split into other ops, each of them routed: PyTorch's composites, and those that are split here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flroute.errors import FlrouteError
from flroute.registry import load
from flroute.routing import attention, encoder, refused, rms_norm, rnn_cells, sync_batch_norm
from flroute.routing.expected import check_before_writing
from flroute.routing.schema import OpFacts
from flroute.torch_compat import run_composite, run_decomposition

PARTS: dict[str, Callable[..., Any]] = {
    **attention.PARTS,
    **encoder.PARTS,
    **refused.PARTS,
    **rms_norm.PARTS,
    **rnn_cells.PARTS,
    **sync_batch_norm.PARTS,
}
"""Ops that PyTorch splits otherwise on a device it does not know than on the host, or not at all: how they are split here."""


def brought_by_plugin(facts: OpFacts, vendor: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
    """A plugin's own way to run an op as others on a vendor's device, or ``None``."""
    brought = load().decompositions.get(vendor, {}).get(facts.name)
    return None if brought is None else _guarded(brought, facts.name, vendor)


def split_of(facts: OpFacts, vendor: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
    """What runs an op as other ops on a vendor's device, or ``None`` if it is not made of others."""
    brought = brought_by_plugin(facts, vendor)
    if brought is not None:
        return brought
    parts = PARTS.get(facts.name)
    if parts is not None:
        return lambda args, kwargs: parts(*args, **kwargs)
    if not facts.is_composite:
        return None

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if facts.written:  # a later part may refuse what an earlier one has begun to write
            check_before_writing(facts.op, args, kwargs)
        return run_composite(facts.op, args, kwargs)

    return run


_MAX_DEPTH = 8
"""How deep calls of one decomposition may nest: it may call its op with arguments that it treats otherwise."""


class _UnderWay(threading.local):
    def __init__(self) -> None:
        self.ops: list[str] = []


_under_way = _UnderWay()


def _guarded(
    function: Callable[..., Any], op: str, vendor: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """A plugin's decomposition; one that goes round in circles would end the process, not only the call."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ops = _under_way.ops
        if ops.count(op) >= _MAX_DEPTH:
            raise FlrouteError(
                f"the decomposition of {op} that a plugin brings to vendor {vendor!r} calls {op} again and again, and no kernel "
                f"takes it. Compute it by other ops, or take the decomposition out of the plugin's flroute_decompositions."
            )
        ops.append(op)
        try:
            return run_decomposition(function, args, kwargs)
        finally:
            ops.pop()

    return run
