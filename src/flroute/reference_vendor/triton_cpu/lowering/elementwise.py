"""Arithmetic, comparisons and functions of one element."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.emit import FunctionWriter
from flroute.reference_vendor.triton_cpu.function_text import literal
from flroute.reference_vendor.triton_cpu.lowering.core import HANDLERS, Lowerer, lowers
from flroute.reference_vendor.triton_cpu.lowering.values import Affine, Node, scalar
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type

Emit = Callable[[FunctionWriter, Op, Sequence[str], Sequence[Type], Type], str]
_EMIT: dict[str, Emit] = {}

_INTEGER_BINARY = {"addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor"}
_FLOAT_BINARY = {"addf": "fadd", "subf": "fsub", "mulf": "fmul", "divf": "fdiv", "remf": "frem"}
_MIN_MAX = {"maxsi": "smax", "minsi": "smin", "maxui": "umax", "minui": "umin"}
_FLOAT_MIN_MAX = {"maxnumf": "maxnum", "minnumf": "minnum", "maximumf": "maximum", "minimumf": "minimum"}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register how ops of these names compute one element."""

    def register(emit: Emit) -> Emit:
        _EMIT.update(dict.fromkeys(names, emit))
        HANDLERS.update(dict.fromkeys(names, lower_elementwise))
        return emit

    return register


def lower_elementwise(low: Lowerer, op: Op) -> None:
    """A scalar is computed where it stands; a block when it is consumed."""
    arguments = low.operands(op)
    kinds, result = [node.type for node in arguments], op.results[0].type
    emit = _EMIT[op.name]

    def at(index: tuple[str, ...]) -> str:
        registers = [low.pull(node, index) for node in arguments]
        return round_to(low.write, result, emit(low.write, op, registers, kinds, result))

    if not result.shape:
        low.define(op, scalar(result, at(())))
        return
    node = Node(
        result, at, tuple((a, True) for a in arguments), frozenset().union(*(a.axes for a in arguments))
    )
    node.affine = _affine(low, op, arguments)
    if op.name == "arith.cmpi":
        node.compare = (_predicate(op), arguments[0], arguments[1])
    elif op.name == "arith.andi" and result.element == "i1":
        node.both = (arguments[0], arguments[1])
    low.define(op, node)


def round_to(w: FunctionWriter, kind: Type, register: str) -> str:
    """Round a float32 register to the half precision that the value has."""
    if kind.element == "f16":
        return w.op(f"fpext half {w.op(f'fptrunc float {register} to half')} to float")
    if kind.element == "bf16":
        bits = w.op(f"zext i16 {w.op(f'call i16 @bfloat16_bits(float {register})')} to i32")
        return w.op(f"bitcast i32 {w.op(f'shl i32 {bits}, 16')} to float")
    return register


def _affine(low: Lowerer, op: Op, arguments: Sequence[Node]) -> Affine | None:
    """The affine form of an integer block, for addresses and bounds."""
    forms = [argument.affine for argument in arguments]
    if any(form is None for form in forms) or op.results[0].type.element not in {"i32", "i64"}:
        return None
    w, name = low.write, op.name.split(".")[1]
    a, *others = [form for form in forms if form is not None]
    if name == "extsi":
        return a
    if not others:
        return None
    b = others[0]
    if name in {"addi", "subi"}:
        combine = w.add if name == "addi" else w.sub
        return Affine(
            combine(a.base, b.base),
            tuple(combine(x, y) for x, y in zip(a.coefficients, b.coefficients, strict=True)),
        )
    if name == "muli":
        if any(c != "0" for c in b.coefficients):
            a, b = b, a
        if all(c == "0" for c in b.coefficients):
            return Affine(w.mul(a.base, b.base), tuple(w.mul(c, b.base) for c in a.coefficients))
    return None


def _predicate(op: Op) -> str:
    return op.text.split()[1].rstrip(",")


# constants


def _nearest(value: float, kind: Type) -> float:
    """The number of a half-precision type that is meant: its text has too few digits to be it."""
    if kind.element == "f16":
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    if kind.element == "bf16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
    return value


def constant_literal(op: Op, text: str, kind: Type) -> str:
    if kind.is_float:
        bits = {"f16": ("<H", "<e"), "bf16": ("<I", "<f"), "f32": ("<I", "<f"), "f64": ("<Q", "<d")}[
            kind.element
        ]
        if text.startswith("0x"):
            raw = int(text, 16) << (16 if kind.element == "bf16" else 0)
            value = struct.unpack(bits[1], struct.pack(bits[0], raw))[0]
        else:
            value = _nearest(float(text), kind)
        return literal(value, kind.register)
    if text in {"true", "false"}:
        return "1" if text == "true" else "0"
    if re.fullmatch(r"-?\d+", text) is None:
        raise op.refuse(f"the constant {text!r} is not supported")
    return text


@lowers("arith.constant")
def lower_constant(low: Lowerer, op: Op) -> None:
    result = op.results[0].type
    match = re.search(r"arith\.constant (?:\{.*?\} )?(?:dense<(.*?)>|(\S+))(?: :|$)", op.text)
    if match is None:
        raise op.refuse("a constant that cannot be read")
    literal = constant_literal(op, match[1] if match[1] is not None else match[2], result)
    if result.element == "i1":
        literal = "true" if literal in {"1", "-1"} else "false"
    node = scalar(result, literal)
    node.constant = literal
    if result.shape and result.element in {"i32", "i64"}:
        node.affine = Affine(literal, ("0",) * len(result.shape))
    low.define(op, node)


@lowers("ub.poison")
def lower_poison(low: Lowerer, op: Op) -> None:
    low.define(op, scalar(op.results[0].type, "0" if op.results[0].type.is_integer else "zeroinitializer"))


# arithmetic


@emits(*(f"arith.{name}" for name in _INTEGER_BINARY))
def integer_binary(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"{_INTEGER_BINARY[op.name[6:]]} {result.register} {x[0]}, {x[1]}")


@emits("arith.shli", "arith.shrsi", "arith.shrui")
def shift(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """Shifting by the width or more gives what shifting bit by bit would, as on a GPU; LLVM leaves it undefined."""
    kind, last = result.register, result.bits - 1
    short = w.op(f"icmp ule {kind} {x[1]}, {last}")
    by = w.op(f"select i1 {short}, {kind} {x[1]}, {kind} {last}")
    if op.name == "arith.shrsi":
        return w.op(f"ashr {kind} {x[0]}, {by}")
    shifted = w.op(f"{'shl' if op.name == 'arith.shli' else 'lshr'} {kind} {x[0]}, {by}")
    return w.op(f"select i1 {short}, {kind} {shifted}, {kind} 0")


@emits("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
def divide(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """Division by zero and of the smallest number by -1 trap on x86; a GPU goes on, and so must masked-off lanes."""
    kind, name, (a, b) = result.register, op.name[6:], (x[0], x[1])
    instruction = {"divsi": "sdiv", "divui": "udiv", "remsi": "srem", "remui": "urem"}[name]
    if re.fullmatch(r"[1-9]\d*", b):
        return w.op(f"{instruction} {kind} {a}, {b}")
    safe = w.op(f"select i1 {w.op(f'icmp eq {kind} {b}, 0')}, {kind} 1, {kind} {b}")
    if name.endswith("ui"):
        return w.op(f"{instruction} {kind} {a}, {safe}")
    negative = w.op(f"icmp eq {kind} {b}, -1")
    safe = w.op(f"select i1 {negative}, {kind} 1, {kind} {safe}")
    value = w.op(f"{instruction} {kind} {a}, {safe}")
    if name == "remsi":
        return value  # anything modulo 1 is 0, as it is modulo -1
    return w.op(f"select i1 {negative}, {kind} {w.op(f'sub {kind} 0, {a}')}, {kind} {value}")


@emits(*(f"arith.{name}" for name in _FLOAT_BINARY), "tt.precise_divf")
def float_binary(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    name = "divf" if op.name == "tt.precise_divf" else op.name[6:]
    return w.op(f"{_FLOAT_BINARY[name]} {result.register} {x[0]}, {x[1]}")


@emits("arith.negf")
def negate(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"fneg {result.register} {x[0]}")


@emits(*(f"arith.{name}" for name in _MIN_MAX))
def integer_min_max(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    kind = result.register
    return w.op(f"call {kind} @llvm.{_MIN_MAX[op.name[6:]]}.{kind}({kind} {x[0]}, {kind} {x[1]})")


@emits(*(f"arith.{name}" for name in _FLOAT_MIN_MAX))
def float_min_max(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return _min_max(w, _FLOAT_MIN_MAX[op.name[6:]], result, x[0], x[1])


def _min_max(w: FunctionWriter, name: str, kind: Type, a: str, b: str) -> str:
    """The larger or the smaller one.

    ``maxnum`` and ``minnum`` are written out: LLVM 22 made wrong code of reductions that it recognised by the intrinsics
    (interleaved loops lost maxima), and this form it does not take for one.
    """
    if name in {"maxnum", "minnum"}:
        better = w.op(f"fcmp {'ogt' if name == 'maxnum' else 'olt'} {kind.register} {b}, {a}")
        chosen = w.op(f"select i1 {better}, {kind.register} {b}, {kind.register} {a}")
        return w.op(
            f"select i1 {w.op(f'fcmp uno {kind.register} {a}, {a}')}, {kind.register} {b}, {kind.register} {chosen}"
        )
    register, suffix = kind.register, "f64" if kind.register == "double" else "f32"
    return w.op(f"call {register} @llvm.{name}.{suffix}({register} {a}, {register} {b})")


@emits("tt.clampf")
def clamp(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    every = "propagateNan = all" in op.text
    raised = _min_max(w, "maximum" if every else "maxnum", result, x[0], x[1])
    return _min_max(w, "minimum" if every else "minnum", result, raised, x[2])


@emits("tt.mulhiui")
def multiply_high(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    kind, wide = result.register, f"i{2 * result.bits}"
    a, b = (w.op(f"zext {kind} {v} to {wide}") for v in x)
    product = w.op(f"mul {wide} {a}, {b}")
    return w.op(f"trunc {wide} {w.op(f'lshr {wide} {product}, {result.bits}')} to {kind}")


# comparisons and selection


@emits("arith.cmpi", "arith.cmpf")
def compare(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(
        f"{'icmp' if op.name.endswith('i') else 'fcmp'} {_predicate(op)} {kinds[0].register} {x[0]}, {x[1]}"
    )


@emits("arith.select")
def select(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"select i1 {x[0]}, {result.register} {x[1]}, {result.register} {x[2]}")


# functions


def real_function(w: FunctionWriter, op: Op, name: str, x: Sequence[str], result: Type) -> str:
    """A function by its name in the C library."""
    if not result.is_float or vector_math.arity(name) != len(x):
        raise op.refuse(f"the function {name!r} of {len(x)} arguments giving {result} is not supported")
    return vector_math.call(w.op, name, result.register, x)


@emits(*(f"math.{name}" for name in (
    "exp", "exp2", "log", "log2", "sin", "cos", "erf", "sqrt", "rsqrt", "floor", "ceil", "absf", "fma",
)), "tt.precise_sqrt")  # fmt: skip
def math_function(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    name = {"math.absf": "fabs", "tt.precise_sqrt": "sqrt"}.get(op.name, op.name.partition(".")[2])
    return real_function(w, op, name, x, result)


@emits("math.absi")
def absolute_integer(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"call {result.register} @llvm.abs.{result.register}({result.register} {x[0]}, i1 false)")
