"""Reductions and scans along an axis, with any combining function, on one block or several at once.

The last axis is folded into a strip of lanes (lane ``l`` combines the elements ``l``, ``l + W``, ``l + 2W``, ...), then the
strip is halved until one is left: every combining function vectorises so, argmax's included, and sums lose less to
rounding than one running total. Another axis is folded row by row, each row a contiguous loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.bounds import leading
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.running import Running, running_for
from flroute.reference_vendor.triton_cpu.lowering.values import Node, scalar
from flroute.reference_vendor.triton_cpu.ttir import Block, Op

_LANES = 64
_SHORT = 8  # elements; an axis this short is unrolled


@lowers("tt.reduce")
def lower_reduce(low: Lowerer, op: Op) -> None:
    sources, axis = low.operands(op), int(op.attributes["axis"])
    shape = sources[0].type.shape
    kept_shape = shape[:axis] + shape[axis + 1 :]
    types = [source.type.with_shape(kept_shape) for source in sources]
    buffers = [low.allocate(kind.numel * kind.bytes) for kind in types]
    fold = _Fold(low, op.regions[0], sources, buffers)
    if shape[axis] <= _SHORT:
        fold.unrolled(axis)
    elif axis == len(shape) - 1 and (running := running_for(op.regions[0], types[0], low.write)):
        fold.running(running)
    elif axis == len(shape) - 1:
        fold.last_axis()
    else:
        fold.rows(axis)
    for result, (kind, buffer) in enumerate(zip(types, buffers, strict=True)):
        node = low.in_buffer(kind, buffer)
        low.define(op, node if kind.shape else scalar(kind, low.read(kind, buffer, ())), result)
    low.done.add(op)


class _Fold:
    def __init__(
        self, low: Lowerer, region: list[Block], sources: Sequence[Node], buffers: Sequence[str]
    ) -> None:
        self.low, self.region, self.sources, self.buffers = low, region, sources, buffers
        self.shape = sources[0].type.shape
        self.flat = [source.type.with_shape(()) for source in sources]

    def combine(self, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """The combining function."""
        return self.low.inline(self.region, [*a, *b])

    def pull(self, index: Index) -> list[str]:
        """What is reduced, at an index."""
        return [self.low.pull(source, index) for source in self.sources]

    def read(self, buffers: Sequence[str], position: str) -> list[str]:
        """One element of each buffer."""
        w = self.low.write
        return [
            self.low.load_element(kind, w.element(kind.storage, base, position))
            for kind, base in zip(self.flat, buffers, strict=True)
        ]

    def put(self, buffers: Sequence[str], position: str, values: Sequence[str]) -> None:
        """Set one element of each buffer."""
        w = self.low.write
        for kind, base, value in zip(self.flat, buffers, values, strict=True):
            self.low.store_element(kind, value, w.element(kind.storage, base, position))

    def running(self, result: Running) -> None:
        """The last axis in one variable."""
        low, w = self.low, self.low.write
        through, masks = low.prepare([(source, True) for source in self.sources])

        def element(index: Index) -> None:
            (value,) = self.pull(index)
            result.take(value)

        def outer_body(outer: Index) -> None:
            result.start()
            low.nest(self.shape, element, masks=masks, prefix=outer, kind="running")
            self.put(self.buffers, w.linear(self.shape[:-1], outer), [result.result()])

        with low.writing_through(through):
            low.nest(self.shape[:-1], outer_body)

    def unrolled(self, axis: int) -> None:
        """Every element of a short axis in one expression."""
        low, kept = self.low, self.shape[:axis] + self.shape[axis + 1 :]
        low.prepare([(source, False) for source in self.sources], through=False)

        def body(index: Index) -> None:
            values = [self.pull((*index[:axis], str(r), *index[axis:])) for r in range(self.shape[axis])]
            while len(values) > 1:
                half = len(values) // 2
                values = [self.combine(a, b) for a, b in zip(values[:half], values[half:], strict=True)]
            self.put(self.buffers, low.write.linear(kept, index), values[0])

        low.nest(kept, body)

    def rows(self, axis: int) -> None:
        """Any axis but the last: row by row into the result."""
        low, w = self.low, self.low.write
        kept = self.shape[:axis] + self.shape[axis + 1 :]
        through, masks = low.prepare([(source, True) for source in self.sources])

        def row(outer: Index, r: str, *, first: bool) -> None:
            def body(index: Index) -> None:
                values, position = self.pull(index), w.linear(kept, index[:axis] + index[axis + 1 :])
                self.put(
                    self.buffers,
                    position,
                    values if first else self.combine(self.read(self.buffers, position), values),
                )

            with low.scope():
                low.nest(self.shape, body, masks=masks, prefix=(*outer, r))

        def outer_body(outer: Index) -> None:
            row(outer, "0", first=True)
            w.loop("1", str(self.shape[axis]), lambda r: row(outer, r, first=False))

        with low.writing_through(through):
            low.nest(self.shape[:axis], outer_body)

    def last_axis(self) -> None:
        """The last axis: in lanes, then by halves."""
        low, w, size = self.low, self.low.write, self.shape[-1]
        lanes = min(size, _LANES)
        strips = [low.allocate(lanes * kind.bytes) for kind in self.flat]
        through, masks = low.prepare([(source, True) for source in self.sources])

        def chunk(outer: Index, start: str, *, first: bool) -> None:
            def lane(lane_index: str) -> None:
                index = (*outer, w.add(start, lane_index))
                with low.element(index):
                    values = self.pull(index)
                    self.put(
                        strips,
                        lane_index,
                        values if first else self.combine(self.read(strips, lane_index), values),
                    )

            with low.scope():
                w.loop("0", str(lanes), lane)

        def outer_body(outer: Index) -> None:
            with low.scope():
                found = {
                    mask: bound for mask in masks if (bound := leading(low, mask, outer, size)) is not None
                }
            chunk(outer, "0", first=True)
            full, assumed = str(size), low.assumed
            for count, _ in found.values():
                full = w.minimum(full, count)
            if found:  # whole strips in which every mask holds, then the rest
                full = w.op(f"and i64 {full}, {-lanes}")
                full = w.op(f"call i64 @llvm.smax.i64(i64 {full}, i64 {lanes})")
                low.assumed = assumed | frozenset(found)
            w.loop(str(lanes), full, lambda start: chunk(outer, start, first=False), step=lanes)
            low.assumed = assumed
            if found:
                w.loop(full, str(size), lambda start: chunk(outer, start, first=False), step=lanes)
            self.halve(strips, lanes)
            self.put(self.buffers, w.linear(self.shape[:-1], outer), self.read(strips, "0"))

        with low.writing_through(through):
            low.nest(self.shape[:-1], outer_body)

    def halve(self, strips: Sequence[str], lanes: int) -> None:
        """Fold a strip onto its first half until one element is left."""
        w, low = self.low.write, self.low
        while lanes > 1:
            lanes //= 2

            def lane(i: str, distance: str = str(lanes)) -> None:
                with low.scope():
                    self.put(
                        strips, i, self.combine(self.read(strips, i), self.read(strips, w.add(i, distance)))
                    )

            w.loop("0", str(lanes), lane)


@lowers("tt.scan")
def lower_scan(low: Lowerer, op: Op) -> None:
    sources, axis, w = low.operands(op), int(op.attributes["axis"]), low.write
    backward, shape = op.attributes.get("reverse") == "true", sources[0].type.shape
    types = [source.type for source in sources]
    buffers = [low.allocate(kind.numel * kind.bytes) for kind in types]
    # What comes before is one element where the axis is the last: in a register, not read back from memory.
    carried = [w.slot(kind.register) for kind in types] if axis == len(shape) - 1 else []
    through, _ = low.prepare([(source, True) for source in sources])

    def place(step: str) -> str:
        return w.sub(str(shape[axis] - 1), step) if backward else step

    def row(outer: Index, step: str, *, first: bool) -> None:
        here, before = (*outer, place(step)), (*outer, "" if first else place(w.sub(step, "1")))

        def body(index: Index) -> None:
            values = [low.pull(source, index) for source in sources]
            if not first and carried:
                old = [
                    w.op(f"load {kind.register}, ptr {slot}")
                    for kind, slot in zip(types, carried, strict=True)
                ]
            elif not first:
                old = [
                    low.read(kind, base, before + index[axis + 1 :])
                    for kind, base in zip(types, buffers, strict=True)
                ]
            if not first:
                values = low.inline(op.regions[0], [*old, *values])
            for kind, slot, value in zip(types, carried, values, strict=False):
                w.emit(f"store {kind.register} {value}, ptr {slot}")
            for kind, base, value in zip(types, buffers, values, strict=True):
                low.write_to(kind, base, index, value)

        with low.scope():
            low.nest(shape, body, prefix=here)

    def outer_body(outer: Index) -> None:
        row(outer, "0", first=True)
        w.loop("1", str(shape[axis]), lambda step: row(outer, step, first=False))

    with low.writing_through(through):
        low.nest(shape[:axis], outer_body)
    for result, (kind, buffer) in enumerate(zip(types, buffers, strict=True)):
        low.define(op, low.in_buffer(kind, buffer), result)
    low.done.add(op)
