"""Masks as loop bounds: most masks hold up to some index of the last axis, and the loop need not test them before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.values import Node

if TYPE_CHECKING:
    from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer


def leading(low: Lowerer, mask: Node, prefix: Index, size: int) -> tuple[str, bool] | None:
    """Up to where on the last axis a mask holds, and whether it holds nowhere after; None: no such form."""
    w = low.write
    if len(mask.type.shape) - 1 not in mask.axes:
        index = (*prefix, "0") if mask.type.shape else ()
        holds = mask.at(()) if not index else low.pull(mask, index)
        return w.op(f"select i1 {holds}, i64 {size}, i64 0"), True
    if mask.buffer:
        return None
    if mask.both:
        found = [leading(low, part, prefix, size) for part in mask.both]
        if found[0] is None or found[1] is None:
            return None
        return w.minimum(found[0][0], found[1][0]), found[0][1] and found[1][1]
    if mask.view and mask.view[2]:
        source, mapping, _ = mask.view
        return leading(low, source, mapping((*prefix, "0"))[:-1], size)
    return _bound(low, *mask.compare, prefix, size) if mask.compare else None


def _bound(
    low: Lowerer, predicate: str, left: Node, right: Node, prefix: Index, size: int
) -> tuple[str, bool] | None:
    """``i + a < b`` holds for the first ``b - a`` elements; ``i + a >= b`` for all of them if for the first."""
    w = low.write
    if left.affine is None or right.affine is None or predicate[0] != "s":
        return None
    step = w.sub(left.affine.coefficients[-1], right.affine.coefficients[-1])
    if step not in {"1", "-1"}:
        return None
    start = (*prefix, "0")
    a, b = low.affine_at(left.affine, start), low.affine_at(right.affine, start)
    if predicate[1] == "g":
        a, b, step = b, a, "-1" if step == "1" else "1"
    if step == "1":  # a + i < b, or <=
        return w.clamp(w.sub(w.add(b, "1") if predicate.endswith("e") else b, a), 0, size), True
    holds = w.op(f"icmp {'sle' if predicate.endswith('e') else 'slt'} i64 {a}, {b}")
    return w.op(f"select i1 {holds}, i64 {size}, i64 0"), False
