"""Pointers, loads, stores and atomic operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.conversions import reinterpret
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.elementwise import round_to
from flroute.reference_vendor.triton_cpu.lowering.values import Affine, Node, scalar
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type


@lowers("tt.addptr")
def lower_addptr(low: Lowerer, op: Op) -> None:
    (pointer, offset), result, w = low.operands(op), op.results[0].type, low.write
    storage, wide = result.pointed.storage, offset.type.bits == 64

    def moved(base: str, by: str) -> str:
        return base if by == "0" else w.op(f"getelementptr {storage}, ptr {base}, i64 {by}")

    def offset_at(index: Index) -> str:
        if offset.affine is not None:
            return low.affine_at(offset.affine, index)
        register = low.pull(offset, index)
        return register if wide else w.op(f"sext {offset.type.register} {register} to i64")

    if not result.shape:
        register = offset.at(())
        extended = (
            register if wide or offset.constant else w.op(f"sext {offset.type.register} {register} to i64")
        )
        node = scalar(result, moved(pointer.at(()), extended))
        node.origin = pointer.origin
        low.define(op, node)
        return
    form: Affine | None = None
    if pointer.affine is not None and offset.affine is not None:
        a, b = pointer.affine, offset.affine
        form = Affine(
            w.add(a.base, b.base),
            tuple(w.add(x, y) for x, y in zip(a.coefficients, b.coefficients, strict=True)),
        )

    def at(index: Index) -> str:
        if form is not None:
            return moved(pointer.root, low.affine_at(form, index))
        return moved(low.pull(pointer, index), offset_at(index))

    node = Node(result, at, ((pointer, True), (offset, True)), pointer.axes | offset.axes, form, pointer.root)
    node.origin = pointer.origin
    low.define(op, node)


@lowers("tt.load")
def lower_load(low: Lowerer, op: Op) -> None:
    pointer, *rest = low.operands(op)
    result, w = op.results[0].type, low.write
    mask, other = (rest[0] if rest else None), (rest[1] if len(rest) > 1 else None)
    nothing = "null" if result.element == "ptr" else "zeroinitializer"
    if not result.is_supported:
        raise op.refuse(f"loading {result} is not supported")

    def at(index: Index) -> str:
        address = low.pull(pointer, index)
        if mask is None or mask in low.assumed:
            return low.load_element(result, address)
        default = nothing if other is None else low.pull(other, index)
        if mask in low.refuted:
            return default
        holds = low.pull(mask, index)
        before = w.block
        with low.scope(), w.when(holds):
            loaded, inside = low.load_element(result, address), w.block
        kind = result.register
        return w.op(f"phi {kind} [{loaded}, %{inside}], [{default}, %{before}]")

    if not result.shape:
        low.define(op, scalar(result, at(())))
        return
    inputs = tuple((node, True) for node in (pointer, mask, other) if node is not None)
    axes = frozenset().union(*(node.axes for node, _ in inputs))
    node = Node(result, at, inputs, axes, mask=mask, is_load=True, pointer=pointer)
    low.define(op, node)


@lowers("tt.store")
def lower_store(low: Lowerer, op: Op) -> None:
    group = low.plan.groups.get(op)
    if group is None:
        return  # written with the last store of its group
    leader = low.plan.leader[op]
    stores = [[low.nodes[value] for value in store.operands] for store in group]
    roots = [node for operands in stores for node in operands]
    if op.operands[0].type.shape:
        _separate_hazards(low, stores, roots)
    found = low.collect((node, True) for node in roots)
    low.before_write(leader, found.order)
    masks = {operands[2] if len(operands) > 2 else None for operands in stores}
    shared = masks.pop() if len(masks) == 1 else None

    def body(index: Index) -> None:
        registers = [[low.pull(node, index) for node in operands] for operands in stores]
        for operands, values in zip(stores, registers, strict=True):
            if len(values) < 3 or operands[2] in low.assumed:
                low.store_element(operands[1].type, values[1], values[0])
            elif operands[2] not in low.refuted:
                with low.scope(), low.write.when(values[2]):
                    low.store_element(operands[1].type, values[1], values[0])

    low.fused(op.operands[0].type.shape, roots, body, mask=shared, kind="parallel")
    low.done.add(leader)


def _separate_hazards(low: Lowerer, stores: Sequence[Sequence[Node]], roots: Sequence[Node]) -> None:
    """A load through the pointer that is stored through, at other addresses: complete it before the first store.

    Loads and stores through different kernel arguments are taken to touch the same memory at the same index or not at
    all, as on a GPU, where anything else is a race.
    """
    while True:
        loads = [
            node
            for node in low.collect((root, True) for root in roots).order
            if node.is_load and not node.buffer
        ]
        hazards = [load for load in loads if any(_may_cross(load.pointer, store[0]) for store in stores)]
        if not hazards:
            return
        low.force(hazards[0])


def _may_cross(read: Node | None, written: Node) -> bool:
    if read is None or read is written:
        return False
    if read.origin and written.origin and read.origin != written.origin:
        return False
    return read.affine is None or (read.root, read.affine) != (written.root, written.affine)


_ATOMIC = {
    "fadd": "fadd", "add": "add", "max": "max", "min": "min", "umax": "umax", "umin": "umin", "and": "and",
    "or": "or", "xor": "xor", "exch": "xchg",
}  # fmt: skip


def _ordering(op: Op) -> str:
    match = re.search(r"\b(relaxed|acquire|release|acq_rel)\b", op.text)
    return {"relaxed": "monotonic"}.get(match[1], match[1]) if match else "acq_rel"


def _each(low: Lowerer, op: Op, roots: Sequence[Node], one: Callable[[Index], str]) -> None:
    """Run an atomic op element by element, in order, keeping what each returns."""
    result = op.results[0].type if op.results else op.operands[1].type
    found = low.collect((node, True) for node in roots)
    low.before_write(op, found.order)
    low.prepare([(node, False) for node in roots], through=False)
    buffer = low.allocate(result.numel * result.bytes) if op.results and result.shape else ""
    returned: list[str] = []

    def body(index: Index) -> None:
        register = one(index)
        if buffer:
            low.write_to(result, buffer, index, register)
        returned.append(register)

    low.nest(op.operands[0].type.shape, body)
    if op.results:
        low.define(op, low.in_buffer(result, buffer) if buffer else scalar(result, returned[0]))
    low.done.add(op)


def _update_half(low: Lowerer, op: Op, instruction: str, kind: Type, address: str, value: str) -> str:
    """An atomic addition of half precision: compare and swap until nothing came between; what was there before.

    The sum is made in float32 and rounded once, as all arithmetic of half precision.
    """
    if instruction != "fadd":
        raise op.refuse(f"the atomic operation {instruction} on {kind.element} is not supported")
    w, bits = low.write, Type((), "i16")
    first, before = w.op(f"load atomic i16, ptr {address} monotonic, align 2"), w.block
    again, done, found = w.label(), w.label(), w.name()
    w.jump(again)
    w.place(again)
    seen = w.op(f"phi i16 [{first}, %{before}], [{found}, %{again}]")
    old = reinterpret(w, op, seen, bits, kind)
    new = round_to(w, kind, w.op(f"fadd float {old}, {value}"))
    swap = f"i16 {seen}, i16 {reinterpret(w, op, new, kind, bits)} {_ordering(op)} monotonic"
    pair = w.op(f"cmpxchg ptr {address}, {swap}, align 2")
    w.emit(f"{found} = extractvalue {{i16, i1}} {pair}, 0")
    w.branch(w.op(f"extractvalue {{i16, i1}} {pair}, 1"), done, again)
    w.place(done)
    return old


@lowers("tt.atomic_rmw")
def lower_atomic_rmw(low: Lowerer, op: Op) -> None:
    roots = low.operands(op)
    kind, w = roots[1].type, low.write
    match = re.match(r"tt\.atomic_rmw (\w+)", op.text)
    instruction = _ATOMIC.get(match[1]) if match else None
    if instruction is None:
        raise op.refuse("this atomic operation is not supported")
    if kind.element == "i1":
        raise op.refuse("an atomic operation on bools is not supported; use an integer type")

    def update(address: str, value: str) -> str:
        if kind.element in {"f16", "bf16"}:
            return _update_half(low, op, instruction, kind, address, value)
        return w.op(
            f"atomicrmw {instruction} ptr {address}, {kind.register} {value} {_ordering(op)}, align {kind.bytes}"
        )

    def one(index: Index) -> str:
        address, value, *mask = (low.pull(node, index) for node in roots)
        if not mask:
            return update(address, value)
        before = w.block
        with w.when(mask[0]):
            old, inside = update(address, value), w.block
        return w.op(
            f"phi {kind.register} [{old}, %{inside}], [{'null' if kind.element == 'ptr' else 'zeroinitializer'}, %{before}]"
        )

    _each(low, op, roots, one)


@lowers("tt.atomic_cas")
def lower_atomic_cas(low: Lowerer, op: Op) -> None:
    roots = low.operands(op)
    kind, w, order = roots[1].type, low.write, _ordering(op)
    if kind.element == "i1":
        raise op.refuse("compare-and-swap of bools is not supported; use an integer type")
    bits, failure = f"i{kind.bits}", {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)
    integer = kind.with_element(bits).with_shape(())

    def as_bits(register: str) -> str:
        return reinterpret(w, op, register, kind, integer) if kind.is_float else register

    def one(index: Index) -> str:
        address, expected, value = (low.pull(node, index) for node in roots)
        pair = w.op(
            f"cmpxchg ptr {address}, {bits} {as_bits(expected)}, {bits} {as_bits(value)} {order} {failure}, align {kind.bytes}"
        )
        old = w.op(f"extractvalue {{{bits}, i1}} {pair}, 0")
        return reinterpret(w, op, old, integer, kind) if kind.is_float else old

    _each(low, op, roots, one)


@lowers("ttg.barrier", "llvm.intr.assume")
def lower_barrier(low: Lowerer, op: Op) -> None:
    """One thread runs a program, op after op; loads before the barrier must be complete at it."""
    low.settle()


@lowers("tt.histogram")
def lower_histogram(low: Lowerer, op: Op) -> None:
    """Counts of each value; a value outside the bins is not counted."""
    operands, result, w = low.operands(op), op.results[0].type, low.write
    source, mask = operands[0], (operands[1] if len(operands) > 1 else None)
    bins, buffer = result.shape[0], low.allocate(result.numel * result.bytes)
    low.prepare([(node, False) for node in operands], through=False)
    low.nest(result.shape, lambda index: low.write_to(result, buffer, index, "0"))

    def body(index: Index) -> None:
        value = low.pull(source, index)
        kind = source.type.register
        counted = w.op(f"icmp ult {kind} {value}, {bins}") if source.type.bits > bins.bit_length() else "true"
        if mask is not None:
            counted = w.op(f"and i1 {counted}, {low.pull(mask, index)}")
        with low.scope(), w.when(counted):
            wide = value if kind == "i64" else w.op(f"zext {kind} {value} to i64")
            count = low.read(result, buffer, (wide,))
            low.write_to(result, buffer, (wide,), w.op(f"add {result.register} {count}, 1"))

    low.nest(source.type.shape, body)
    low.define(op, low.in_buffer(result, buffer))
    low.done.add(op)
