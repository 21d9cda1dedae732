"""Ops that are split into other ops, each of them routed: PyTorch's composites, and those that are split here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flroute.routing import attention, encoder, rms_norm, rnn_cells
from flroute.routing.expected import check_before_writing
from flroute.routing.schema import OpFacts
from flroute.torch_compat import run_composite

PARTS: dict[str, Callable[..., Any]] = {
    **attention.PARTS,
    **encoder.PARTS,
    **rms_norm.PARTS,
    **rnn_cells.PARTS,
}
"""Ops that PyTorch splits otherwise on a device it does not know than on the host, or not at all: how they are split here."""


def split_of(facts: OpFacts) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
    """What runs an op as other ops, or ``None`` if it is not made of others."""
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
