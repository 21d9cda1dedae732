"""Ops that move elements without computing: each maps an index of its result to an index of its source."""

from __future__ import annotations

import re
from collections.abc import Callable

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.values import Affine, Node, scalar
from flroute.reference_vendor.triton_cpu.ttir import Op


@lowers("tt.make_range")
def lower_make_range(low: Lowerer, op: Op) -> None:
    start, w = op.attributes["start"], low.write

    def at(index: Index) -> str:
        value = w.add(index[0], start)
        return value if value.lstrip("-").isdigit() else w.op(f"trunc i64 {value} to i32")

    low.define(op, Node(op.results[0].type, at, axes=frozenset({0}), affine=Affine(start, ("1",))))


@lowers("tt.splat")
def lower_splat(low: Lowerer, op: Op) -> None:
    (source,), result, w = low.operands(op), op.results[0].type, low.write
    register = source.at(())
    node = scalar(result, register)
    zeros = ("0",) * len(result.shape)
    if result.element == "ptr":
        node.root, node.origin, node.affine = register, source.origin, Affine("0", zeros)
    elif result.element in {"i32", "i64"}:
        base = register if result.element == "i64" or source.constant else w.op(f"sext i32 {register} to i64")
        node.affine = Affine(base, zeros)
    node.constant = source.constant
    low.define(op, node)


@lowers("tt.unsplat")
def lower_unsplat(low: Lowerer, op: Op) -> None:
    (source,) = low.operands(op)
    low.prepare([(source, False)])
    low.define(op, scalar(op.results[0].type, low.pull(source, ("0",) * len(source.type.shape))))


def _view(
    low: Lowerer,
    op: Op,
    source: Node,
    mapping: Callable[[Index], Index],
    axes: dict[int, int],
    *,
    same_last: bool,
    identity: bool = False,
) -> None:
    """A result whose axis ``d`` is axis ``axes[d]`` of the source; other axes repeat, or have size one."""
    result = op.results[0].type
    node = Node(result, lambda index: low.pull(source, mapping(index)), ((source, identity),))
    node.axes = frozenset(d for d, s in axes.items() if s in source.axes)
    node.root, node.origin, node.constant = source.root, source.origin, source.constant
    if source.affine is not None:
        coefficients = ["0"] * len(result.shape)
        for d, s in axes.items():
            coefficients[d] = source.affine.coefficients[s]
        node.affine = Affine(source.affine.base, tuple(coefficients))
    node.view = (source, mapping, same_last)
    low.define(op, node)


@lowers("tt.expand_dims")
def lower_expand_dims(low: Lowerer, op: Op) -> None:
    (source,), axis = low.operands(op), int(op.attributes["axis"])
    rank = len(op.results[0].type.shape)
    axes = {d: d - (d > axis) for d in range(rank) if d != axis}
    _view(low, op, source, lambda index: index[:axis] + index[axis + 1 :], axes, same_last=axis != rank - 1)


@lowers("tt.broadcast")
def lower_broadcast(low: Lowerer, op: Op) -> None:
    (source,) = low.operands(op)
    shape = source.type.shape
    own = [size == wanted for size, wanted in zip(shape, op.results[0].type.shape, strict=True)]

    def mapping(index: Index) -> Index:
        return tuple(i if same else "0" for i, same in zip(index, own, strict=True))

    _view(
        low,
        op,
        source,
        mapping,
        {d: d for d, same in enumerate(own) if same},
        same_last=own[-1],
        identity=all(own),
    )


@lowers("tt.trans")
def lower_trans(low: Lowerer, op: Op) -> None:
    (source,) = low.operands(op)
    match = re.search(r"order = array<i32: ([\d, ]+)>", op.text)
    if match is None:
        raise op.refuse("a transposition without an order")
    order = [int(axis) for axis in match[1].split(",")]

    def mapping(index: Index) -> Index:
        return tuple(index[order.index(axis)] for axis in range(len(order)))

    _view(low, op, source, mapping, dict(enumerate(order)), same_last=order[-1] == len(order) - 1)


@lowers("tt.reshape")
def lower_reshape(low: Lowerer, op: Op) -> None:
    (source,) = low.operands(op)
    before, after = source.type.shape, op.results[0].type.shape
    long_before = [d for d, size in enumerate(before) if size > 1]
    long_after = [d for d, size in enumerate(after) if size > 1]
    if [before[d] for d in long_before] == [after[d] for d in long_after]:  # only axes of size one come or go
        axes = dict(zip(long_after, long_before, strict=True))

        def mapping(index: Index) -> Index:
            found = ["0"] * len(before)
            for d, s in axes.items():
                found[s] = index[d]
            return tuple(found)

        same_last = (
            bool(long_after) and long_after[-1] == len(after) - 1 and long_before[-1] == len(before) - 1
        )
        _view(low, op, source, mapping, axes, same_last=same_last, identity=before == after)
        return
    w, kind = low.write, source.type

    def at(index: Index) -> str:
        position = w.linear(after, index)
        if source.buffer:
            return low.load_element(kind, w.element(kind.storage, source.buffer, position))
        return low.pull(source, w.unravel(before, position))

    low.define(op, Node(op.results[0].type, at, ((source, False),), _all_axes(after)))


def _all_axes(shape: tuple[int, ...]) -> frozenset[int]:
    return frozenset(d for d, size in enumerate(shape) if size > 1)


@lowers("tt.join")
def lower_join(low: Lowerer, op: Op) -> None:
    (a, b), result, w = low.operands(op), op.results[0].type, low.write

    def at(index: Index) -> str:
        if index[-1] in {"0", "1"}:
            return low.pull((a, b)[int(index[-1])], index[:-1])
        first = w.op(f"icmp eq i64 {index[-1]}, 0")
        x, y = low.pull(a, index[:-1]), low.pull(b, index[:-1])
        return w.op(f"select i1 {first}, {result.register} {x}, {result.register} {y}")

    low.define(op, Node(result, at, ((a, False), (b, False)), _all_axes(result.shape)))


@lowers("tt.split")
def lower_split(low: Lowerer, op: Op) -> None:
    (source,) = low.operands(op)
    for part in (0, 1):
        result = op.results[part].type
        if not result.shape:
            low.prepare([(source, False)])
            low.define(op, scalar(result, low.pull(source, (str(part),))), part)
            continue

        def at(index: Index, last: str = str(part)) -> str:
            return low.pull(source, (*index, last))

        low.define(op, Node(result, at, ((source, False),), _all_axes(result.shape)), part)


@lowers("tt.cat")
def lower_cat(low: Lowerer, op: Op) -> None:
    (a, b), result, w = low.operands(op), op.results[0].type, low.write
    half = a.type.shape[0]

    def at(index: Index) -> str:
        first = w.op(f"icmp slt i64 {index[0]}, {half}")
        inside = w.op(f"and i64 {index[0]}, {half - 1}")
        x, y = low.pull(a, (inside, *index[1:])), low.pull(b, (inside, *index[1:]))
        return w.op(f"select i1 {first}, {result.register} {x}, {result.register} {y}")

    low.define(op, Node(result, at, ((a, False), (b, False)), _all_axes(result.shape)))


@lowers("tt.gather")
def lower_gather(low: Lowerer, op: Op) -> None:
    """The source is completed in scratch; an index out of range, which Triton leaves undefined, wraps around."""
    source, where = low.operands(op)
    axis, w, kind = int(op.attributes["axis"]), low.write, where.type
    buffer, size = low.force(source), source.type.shape[axis]

    def at(index: Index) -> str:
        chosen = low.pull(where, index)
        wide = chosen if kind.bits == 64 else w.op(f"sext {kind.register} {chosen} to i64")
        inside = w.op(f"and i64 {wide}, {size - 1}")
        return low.read(source.type, buffer, (*index[:axis], inside, *index[axis + 1 :]))

    low.define(op, Node(op.results[0].type, at, ((where, True),), _all_axes(op.results[0].type.shape)))
