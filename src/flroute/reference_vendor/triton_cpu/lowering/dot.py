"""Matrix products: a tile of the accumulator stays in vector registers while it runs along the common axis.

Both operands are first completed in scratch memory, row by row and in the accumulator's type, so that the innermost loop
reads one row of ``b`` and broadcasts single elements of ``a``, all contiguous. float32 products are IEEE float32,
whatever ``input_precision`` allows; half-precision operands are multiplied and summed in float32.
"""

from __future__ import annotations

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.elementwise import round_to
from flroute.reference_vendor.triton_cpu.lowering.values import Node
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type, element_of

_ROWS = 4  # of the register tile
_TILE_BYTES = 64  # two AVX2 registers, one AVX-512 register


@lowers("tt.dot")
def lower_dot(low: Lowerer, op: Op) -> None:
    a, b, c = low.operands(op)[:3]
    result = op.results[0].type
    wide = Type((), element_of(result.register))
    if result.is_integer and result.element != "i32":
        raise op.refuse(f"integer products are summed in i32, not in {result.element}")
    left, right = _complete(low, op, a, wide), _complete(low, op, b, wide)
    exact = result.element == wide.element
    if exact and c.carried and c.buffer and low.plan.uses[op.operands[2]] == 1:
        buffer = c.buffer
    else:
        buffer = low.allocate(result.numel * wide.bytes)
        low.copy_into([(_as_type(low, c, wide.with_shape(result.shape)), buffer)])
    shape = (*result.shape[:-1], a.type.shape[-1], result.shape[-1])  # [batch,] rows, common, columns
    if len(shape) == 3:
        _multiply(low, wide, shape, left, right, buffer)
    else:
        batch, rows, common, columns = shape

        def one(i: str) -> None:
            w = low.write
            offsets = [
                w.element(wide.storage, base, w.mul(i, str(n)))
                for base, n in ((left, rows * common), (right, common * columns), (buffer, rows * columns))
            ]
            _multiply(low, wide, (rows, common, columns), *offsets)

        low.write.loop("0", str(batch), one)
    low.done.add(op)
    product = low.in_buffer(wide.with_shape(result.shape), buffer)
    low.define(op, product if exact else _rounded(low, product, result))


def _complete(low: Lowerer, op: Op, node: Node, wide: Type) -> str:
    """The operand in scratch memory, in the accumulator's type."""
    source = node.type
    if (
        source.is_float != wide.is_float
        or (source.is_integer and source.element != "i8")
        or source.bits > wide.bits
    ):
        raise op.refuse(f"a product of {source.element} summed in {wide.element} is not supported")
    if node.buffer and source.element == wide.element:
        return node.buffer
    target = wide.with_shape(source.shape)
    buffer = low.allocate(target.numel * target.bytes)
    low.copy_into([(_as_type(low, node, target), buffer)])
    return buffer


def _as_type(low: Lowerer, node: Node, target: Type) -> Node:
    """The same values in a wider type; a half-precision register already holds float32."""
    source = node.type

    def at(index: Index) -> str:
        register = low.pull(node, index)
        if source.register == target.register:
            return register
        return low.write.op(
            f"{'fpext' if source.is_float else 'sext'} {source.register} {register} to {target.register}"
        )

    return Node(target, at, ((node, True),), node.axes)


def _rounded(low: Lowerer, node: Node, target: Type) -> Node:
    return Node(
        target, lambda index: round_to(low.write, target, low.pull(node, index)), ((node, True),), node.axes
    )


def _multiply(low: Lowerer, kind: Type, shape: tuple[int, int, int], a: str, b: str, c: str) -> None:
    """``c += a @ b``, all row-major."""
    w, (rows, common, columns) = low.write, shape
    width = min(columns, _TILE_BYTES // kind.bytes)
    height = min(rows, _ROWS)
    vector, element = f"<{width} x {kind.register}>", kind.register

    def tile(i: str, j: str) -> None:
        places = []
        for row in range(height):
            position = w.add(w.mul(w.add(i, str(row)), str(columns)), j)
            places.append(w.element(element, c, position))
        sums = [w.slot(vector) for _ in range(height)]
        for slot, place in zip(sums, places, strict=True):
            w.emit(f"store {vector} {w.op(f'load {vector}, ptr {place}, align {kind.bytes}')}, ptr {slot}")

        def step(k: str) -> None:
            row_of_b = w.element(element, b, w.add(w.mul(k, str(columns)), j))
            y = w.op(f"load {vector}, ptr {row_of_b}, align {kind.bytes}")
            for row in range(height):
                at = w.element(element, a, w.add(w.mul(w.add(i, str(row)), str(common)), k))
                x = w.op(f"load {element}, ptr {at}, align {kind.bytes}")
                one = w.op(f"insertelement {vector} poison, {element} {x}, i64 0")
                spread = w.op(
                    f"shufflevector {vector} {one}, {vector} poison, <{width} x i32> zeroinitializer"
                )
                total = w.op(f"load {vector}, ptr {sums[row]}")
                w.emit(
                    f"store {vector} {_multiply_add(low, kind, vector, width, spread, y, total)}, ptr {sums[row]}"
                )

        w.loop("0", str(common), step)
        for slot, place in zip(sums, places, strict=True):
            w.emit(f"store {vector} {w.op(f'load {vector}, ptr {slot}')}, ptr {place}, align {kind.bytes}")

    w.loop("0", str(columns), lambda j: w.loop("0", str(rows), lambda i: tile(i, j), step=height), step=width)


def _multiply_add(low: Lowerer, kind: Type, vector: str, width: int, x: str, y: str, total: str) -> str:
    w = low.write
    if kind.is_integer:
        return w.op(f"add {vector} {w.op(f'mul {vector} {x}, {y}')}, {total}")
    suffix = f"v{width}f{kind.bits}"
    return w.op(f"call {vector} @llvm.fma.{suffix}({vector} {x}, {vector} {y}, {vector} {total})")
