"""Loops, branches and early returns.

What a loop or a branch carries lives in a *carrier*: a variable of the frame for a scalar (LLVM makes it a register), a
scratch buffer for a block. A block that a loop only moves by a uniform step, as ``pointers += BLOCK``, is not stored at
all: its start stays as it is and the steps add up in one scalar, so that addresses stay contiguous for LLVM to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.values import Affine, Node, scalar
from flroute.reference_vendor.triton_cpu.ttir import Block, Function, Op, Value
from flroute.reference_vendor.triton_cpu.types import Type


@dataclass(eq=False)
class Carrier:
    """Where a carried value is kept."""

    type: Type
    place: str

    def read(self, low: Lowerer) -> Node:
        """The value it holds, where this is written."""
        if not self.type.shape:
            return scalar(self.type, low.write.op(f"load {self.type.register}, ptr {self.place}"))
        node = low.in_buffer(self.type, self.place)
        node.carried = True
        return node


def make_carrier(low: Lowerer, kind: Type) -> Carrier:
    return Carrier(
        kind, low.allocate(kind.numel * kind.bytes) if kind.shape else low.write.slot(kind.register)
    )


def leave(low: Lowerer, op: Op, carriers: list[Carrier]) -> None:
    """After the last region of ``op``: its results are what the carriers hold."""
    low.done.add(op)
    for carrier, value in zip(carriers, op.results, strict=True):
        low.nodes[value] = carrier.read(low)
        low.nodes[value].carried = False


def assign(low: Lowerer, carriers: Sequence[Carrier], values: Sequence[Node]) -> None:
    """Assign all at once: no value sees another's new one."""
    scalars = [(c, v.at(())) for c, v in zip(carriers, values, strict=True) if not c.type.shape]
    blocks = [(c, v) for c, v in zip(carriers, values, strict=True) if c.type.shape and v.buffer != c.place]
    groups: dict[tuple[int, ...], list[tuple[Carrier, Node]]] = {}
    for carrier, value in blocks:
        groups.setdefault(carrier.type.shape, []).append((carrier, value))
    places = {carrier.place: carrier.type.shape for carrier, _ in blocks}
    pairs = {shape: [(value, carrier.place) for carrier, value in group] for shape, group in groups.items()}
    if all(_reads_in_place(low, shape, group, places) for shape, group in pairs.items()):
        for group in pairs.values():
            low.copy_into(group)
    else:
        copies = []
        for group in pairs.values():
            temporary = [(value, low.allocate(value.type.numel * value.type.bytes)) for value, _ in group]
            low.copy_into(temporary)
            copies.append(
                [
                    (low.in_buffer(value.type, place), end)
                    for (value, place), (_, end) in zip(temporary, group, strict=True)
                ]
            )
        for copy in copies:
            low.copy_into(copy)
    for carrier, register in scalars:
        low.write.emit(f"store {carrier.type.register} {register}, ptr {carrier.place}")


def _reads_in_place(
    low: Lowerer,
    shape: tuple[int, ...],
    group: Sequence[tuple[Node, str]],
    places: dict[str, tuple[int, ...]],
) -> bool:
    """Whether these values read buffers that are being assigned only at the index they are computed for."""
    found = low.collect((value, True) for value, _ in group)
    return all(
        found.identity[node] and places[node.buffer] == shape for node in found.order if node.buffer in places
    )


# structured loops and branches


@lowers("scf.for")
def lower_for(low: Lowerer, op: Op) -> None:
    w = low.write
    low.settle()
    start, stop, step, *initial = low.operands(op)
    block, kind = op.regions[0][0], op.operands[0].type.register
    counter, *arguments = block.arguments
    steps = ((i, _uniform_step(block, i, argument)) for i, argument in enumerate(arguments))
    moving = {i: step for i, step in steps if step is not None and initial[i].type.shape}
    stored = [i for i in range(len(initial)) if i not in moving]
    carriers = {i: make_carrier(low, initial[i].type) for i in stored}
    assign(low, [carriers[i] for i in stored], [initial[i] for i in stored])
    distance = {i: w.slot("i64") for i in moving}
    for slot in distance.values():
        w.emit(f"store i64 0, ptr {slot}")
    position = w.slot(kind)
    w.emit(f"store {kind} {start.at(())}, ptr {position}")
    header, inside, after = w.label(), w.label(), w.label()
    w.jump(header)
    w.place(header)
    now = w.op(f"load {kind}, ptr {position}")
    less = "ult" if op.attributes["unsigned"] else "slt"
    w.branch(w.op(f"icmp {less} {kind} {now}, {stop.at(())}"), inside, after)
    w.place(inside)
    with low.region():
        low.nodes[counter] = scalar(counter.type, now)
        for i in stored:
            low.nodes[arguments[i]] = carriers[i].read(low)
        for i in moving:
            low.nodes[arguments[i]] = _moved(low, initial[i], w.op(f"load i64, ptr {distance[i]}"))
        low.run(block.ops[:-1])
        last = block.ops[-1]
        assign(low, [carriers[i] for i in stored], [low.nodes[last.operands[i]] for i in stored])
        low.done.add(last)
        for i in moving:
            by = _step_register(low, low.nodes[moving[i]])
            w.emit(f"store i64 {w.add(w.op(f'load i64, ptr {distance[i]}'), by)}, ptr {distance[i]}")
        w.emit(f"store {kind} {w.op(f'add {kind} {now}, {step.at(())}')}, ptr {position}")
    w.jump(header)
    w.place(after)
    low.done.add(op)
    for i, value in enumerate(op.results):
        if i in carriers:
            low.nodes[value] = carriers[i].read(low)
            low.nodes[value].carried = False
        else:
            low.nodes[value] = _moved(low, initial[i], w.op(f"load i64, ptr {distance[i]}"))


def _uniform_step(block: Block, i: int, argument: Value) -> Value | None:
    """The uniform value that an iteration adds to a carried block of pointers or integers, if that is all it does."""
    made = {result: op for op in block.ops for result in op.results}
    op = made.get(block.ops[-1].operands[i])
    if (
        op is None
        or op.name not in {"tt.addptr", "arith.addi"}
        or argument.type.element not in {"ptr", "i32", "i64"}
    ):
        return None
    left, right = op.operands
    if left is not argument:
        left, right = right, left
    if left is not argument or (op.name == "tt.addptr" and op.operands[0] is not argument):
        return None
    source = made.get(right)
    return right if source is None or source.name in {"tt.splat", "arith.constant"} else None


def _step_register(low: Lowerer, step: Node) -> str:
    if step.affine is None:
        raise AssertionError("a uniform block has an affine form")
    return step.affine.base


def _moved(low: Lowerer, start: Node, distance: str) -> Node:
    """``start`` with every element moved by ``distance``."""
    w, kind = low.write, start.type
    if kind.element == "ptr":
        storage = kind.pointed.storage

        def at(index: Index) -> str:
            if start.affine is not None and start.root:
                offset = w.add(low.affine_at(start.affine, index), distance)
                return w.op(f"getelementptr {storage}, ptr {start.root}, i64 {offset}")
            return w.op(f"getelementptr {storage}, ptr {low.pull(start, index)}, i64 {distance}")

    else:

        def at(index: Index) -> str:
            by = distance if kind.element == "i64" else w.op(f"trunc i64 {distance} to {kind.register}")
            return w.op(f"add {kind.register} {low.pull(start, index)}, {by}")

    form = (
        Affine(w.add(start.affine.base, distance), start.affine.coefficients)
        if start.affine is not None
        else None
    )
    node = Node(kind, at, ((start, True),), start.axes, form, start.root)
    node.origin = start.origin
    return node


@lowers("scf.if")
def lower_if(low: Lowerer, op: Op) -> None:
    w = low.write
    low.settle()
    carriers = [make_carrier(low, result.type) for result in op.results]
    then, otherwise, after = w.label(), w.label(), w.label()
    w.branch(low.operands(op)[0].at(()), then, otherwise)
    for label, region in zip((then, otherwise), [*op.regions, None][:2], strict=True):
        w.place(label)
        if region is not None:
            with low.region():
                block = region[0]
                low.run(block.ops[:-1])
                assign(low, carriers, low.operands(block.ops[-1]))
                low.done.add(block.ops[-1])
        w.jump(after)
    w.place(after)
    leave(low, op, carriers)


@lowers("scf.while")
def lower_while(low: Lowerer, op: Op) -> None:
    w = low.write
    low.settle()
    before, after = op.regions[0][0], op.regions[1][0]
    coming = [make_carrier(low, value.type) for value in before.arguments]
    going = [make_carrier(low, value.type) for value in after.arguments]
    assign(low, coming, low.operands(op))
    header, inside, done = w.label(), w.label(), w.label()
    w.jump(header)
    w.place(header)
    with low.region():
        for carrier, value in zip(coming, before.arguments, strict=True):
            low.nodes[value] = carrier.read(low)
        low.run(before.ops[:-1])
        condition, *values = low.operands(before.ops[-1])
        assign(low, going, values)
        low.done.add(before.ops[-1])
        w.branch(condition.at(()), inside, done)
    w.place(inside)
    with low.region():
        for carrier, value in zip(going, after.arguments, strict=True):
            low.nodes[value] = carrier.read(low)
        low.run(after.ops[:-1])
        assign(low, coming, low.operands(after.ops[-1]))
        low.done.add(after.ops[-1])
    w.jump(header)
    w.place(done)
    leave(low, op, going)


# unstructured branches, which an early return makes


def lower_function(low: Lowerer, function: Function) -> None:
    """Every block in order; a block's arguments arrive in carriers."""
    labels = {block.label: low.write.label() for block in function.blocks}
    carriers = {
        block.label: [make_carrier(low, value.type) for value in block.arguments] for block in function.blocks
    }
    low.labels, low.carriers = labels, {label: list(found) for label, found in carriers.items()}
    low.write.jump(labels[function.blocks[0].label])
    for block in function.blocks:
        low.write.place(labels[block.label])
        with low.region():
            for carrier, value in zip(carriers[block.label], block.arguments, strict=True):
                low.nodes[value] = carrier.read(low)
                low.nodes[value].carried = False
            low.run(block.ops)
    low.write.place(low.exit)


def _pass(low: Lowerer, label: str, values: Sequence[Value]) -> None:
    carriers = [carrier for carrier in low.carriers[label] if isinstance(carrier, Carrier)]
    assign(low, carriers, [low.nodes[value] for value in values])


@lowers("cf.br")
def lower_branch(low: Lowerer, op: Op) -> None:
    low.settle()
    label, values = op.successors[0]
    _pass(low, label, values)
    low.write.jump(low.labels[label])


@lowers("cf.cond_br")
def lower_conditional_branch(low: Lowerer, op: Op) -> None:
    low.settle()
    then, otherwise = low.write.label(), low.write.label()
    low.write.branch(low.nodes[op.operands[0]].at(()), then, otherwise)
    for place, (label, values) in zip((then, otherwise), op.successors, strict=True):
        low.write.place(place)
        with low.region():
            _pass(low, label, values)
        low.write.jump(low.labels[label])


@lowers("tt.return")
def lower_return(low: Lowerer, op: Op) -> None:
    low.write.jump(low.exit)


# what a program knows about itself

_AXES = {"x": 0, "y": 1, "z": 2}


@lowers("tt.get_program_id", "tt.get_num_programs")
def lower_program(low: Lowerer, op: Op) -> None:
    axis = _AXES[op.text.split()[1].rstrip(":")]
    name = "program" if op.name == "tt.get_program_id" else "programs"
    low.define(op, scalar(op.results[0].type, f"%{name}{axis}"))
