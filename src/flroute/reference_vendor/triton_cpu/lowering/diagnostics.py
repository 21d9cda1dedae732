"""``tl.device_assert`` and ``tl.device_print``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from flroute.reference_vendor.triton_cpu.emit import Index
from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.values import Node
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type


@lowers("tt.assert")
def lower_assert(low: Lowerer, op: Op) -> None:
    """Writes the number of the failing assertion at the start of scratch memory, where the launcher looks."""
    (condition,), w = low.operands(op), low.write
    match = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
    low.assertions.append(f"{op.location}: {match[1] if match else 'device_assert'}")
    number = len(low.assertions)

    def body(index: Index) -> None:
        holds = low.pull(condition, index)
        with w.when(w.op(f"xor i1 {holds}, true")):
            w.store("i64", str(number), low.status, 8)

    _in_order(low, op, [condition], condition.type.shape, body)


@lowers("tt.print")
def lower_print(low: Lowerer, op: Op) -> None:
    """Prints as on a GPU: the program, the index, the prefix, the value; through C's printf."""
    operands = low.operands(op)
    match = re.match(r'tt\.print ("(?:[^"\\]|\\.)*")', op.text)
    prefix = json.loads(match[1]) if match else ""
    hexadecimal, unsigned = op.attributes.get("hex") == "true", _unsigned(op, len(operands))
    place = "pid (%d, %d, %d)"
    if not operands:
        _printf(low, f"{place}{prefix.replace('%', '%%')}\n", ())
    for position, node in enumerate(operands):
        shape = node.type.shape
        at = f" idx ({', '.join(['%lld'] * len(shape))})" if shape else ""
        operand = f" (operand {position})" if len(operands) > 1 else ""
        form, kind = _form(node.type, hexadecimal=hexadecimal, unsigned=unsigned[position])
        text = f"{place}{at}{prefix.replace('%', '%%')}{operand}{form}\n"

        def body(index: Index, node: Node = node, kind: str = kind, text: str = text) -> None:
            value = _promoted(low, node, low.pull(node, index), kind)
            _printf(low, text, (*(f"i64 {i}" for i in index), f"{kind} {value}"))

        _in_order(low, op, [node], shape, body)
    low.done.add(op)


def _unsigned(op: Op, count: int) -> list[bool]:
    match = re.search(r"isSigned = array<i32: ([\d, ]+)>", op.text)
    return [flag.strip() == "0" for flag in match[1].split(",")] if match else [False] * count


def _form(kind: Type, *, hexadecimal: bool, unsigned: bool) -> tuple[str, str]:
    if kind.element == "ptr":
        return "%p", "ptr"
    if kind.is_float:
        return "%f", "double"
    return ("0x%llx" if hexadecimal else "%llu" if unsigned else "%lld"), "i64"


def _promoted(low: Lowerer, node: Node, register: str, kind: str) -> str:
    source = node.type.register
    if source == kind:
        return register
    if kind == "double":
        return low.write.op(f"fpext {source} {register} to double")
    return low.write.op(f"{'zext' if source == 'i1' else 'sext'} {source} {register} to i64")


def _printf(low: Lowerer, text: str, arguments: tuple[str, ...]) -> None:
    low.declared.add("declare i32 @printf(ptr, ...)")
    program = ", ".join(f"i32 %program{axis}" for axis in range(3))
    rest = "".join(f", {argument}" for argument in arguments)
    low.write.op(f"call i32 (ptr, ...) @printf(ptr {low.write.string(text)}, {program}{rest})")


def _in_order(
    low: Lowerer, op: Op, nodes: list[Node], shape: tuple[int, ...], body: Callable[[Index], None]
) -> None:
    low.prepare([(node, False) for node in nodes], through=False)
    low.nest(shape, body)
    low.done.add(op)
