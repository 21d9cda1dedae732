"""Conversions of one element: between floats, between integers, from one to the other, and bits taken for another type.

Every conversion rounds once. A half-precision value lives in a float32 register, to which float64 and wide integers are
first rounded *to odd* (cut off, with the last bit set if anything was lost): rounding that to nearest afterwards gives what
rounding the exact value would, since float32 has more than two bits more (Boldo and Melquiond, 2008).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.emit import FunctionWriter
from flroute.reference_vendor.triton_cpu.lowering.elementwise import emits
from flroute.reference_vendor.triton_cpu.lowering.rounding import cast, saturated
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type


@emits("arith.extsi", "arith.extui", "arith.trunci")
def resize_integer(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    instruction = {"extsi": "sext", "extui": "zext", "trunci": "trunc"}[op.name[6:]]
    return w.op(f"{instruction} {kinds[0].register} {x[0]} to {result.register}")


@emits("arith.sitofp", "arith.uitofp")
def integer_to_float(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """To float16 through float32, which holds every integer below float16's infinity; to bfloat16 through odd float32."""
    (value,), (kind,) = x, kinds
    if result.element != "bf16" or kind.bits < 32:
        return w.op(f"{op.name[6:]} {kind.register} {value} to {result.register}")
    if kind.bits == 64:
        value = _in_53_bits(w, value, signed=op.name == "arith.sitofp")
    return vector_math.rounded_to_odd(w.op, w.op(f"{op.name[6:]} {kind.register} {value} to double"))


def _in_53_bits(w: FunctionWriter, x: str, *, signed: bool) -> str:
    """A 64-bit integer, or, where float64 does not hold it, one that it holds and that rounds to the same bfloat16."""
    shifted, limit = (w.op(f"add i64 {x}, {1 << 53}"), 1 << 54) if signed else (x, 1 << 53)
    held = w.op(f"icmp ult i64 {shifted}, {limit}")
    lost = w.op(f"icmp ne i64 {w.op(f'and i64 {x}, 4095')}, 0")
    cut, odd = w.op(f"and i64 {x}, -4096"), w.op(f"select i1 {lost}, i64 2048, i64 0")
    return w.op(f"select i1 {held}, i64 {x}, i64 {w.op(f'or i64 {cut}, {odd}')}")


@emits("arith.fptosi", "arith.fptoui")
def float_to_integer(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """As NVIDIA's ``cvt.rzi``, which has no 8-bit integers: those are cut off 16-bit ones, and 300.0 becomes 44."""
    wide = result.with_element("i16") if result.bits == 8 else result
    value = saturated(w, x[0], kinds[0], wide, signed=op.name == "arith.fptosi")
    return value if wide is result else w.op(f"trunc i16 {value} to i8")


@emits("arith.extf", "arith.truncf", "tt.fp_to_fp")
def resize_float(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    rounding = re.search(r"rounding = (\w+)", op.text)
    to_zero = rounding is not None and rounding[1] == "rtz"
    if rounding is not None and rounding[1] not in {"rtne", "rtz"}:
        raise op.refuse(
            f"rounding {rounding[1]} is not supported: rtne (to nearest, ties to even) and rtz (to zero) are"
        )
    (value,), (kind,) = x, kinds
    if result.element not in {"f16", "bf16"}:
        if result.bits < kind.bits:
            return cast(w, ("double", "float"), "rz" if to_zero else "rn", value, kind, result)
        return w.op(f"fpext float {value} to double") if result.register == "double" else value
    if kind.register == "double":
        value = vector_math.rounded_to_odd(w.op, value)
    return _cut_off(w, value, result) if to_zero else value  # rounding to nearest follows every op


def _cut_off(w: FunctionWriter, x: str, result: Type) -> str:
    """A float32 register rounded to a half-precision type towards zero."""
    if result.element == "bf16":
        cut = w.op(f"and i32 {w.op(f'bitcast float {x} to i32')}, -65536")
        number, unknown = w.op(f"bitcast i32 {cut} to float"), w.op(f"fcmp uno float {x}, {x}")
        return w.op(f"select i1 {unknown}, float {x}, float {number}")
    near = w.op(f"fptrunc float {x} to half")
    sizes = [w.op(f"call float @llvm.fabs.f32(float {v})") for v in (w.op(f"fpext half {near} to float"), x)]
    beyond = w.op(f"zext i1 {w.op(f'fcmp ogt float {sizes[0]}, {sizes[1]}')} to i16")
    bits = w.op(f"sub i16 {w.op(f'bitcast half {near} to i16')}, {beyond}")
    return w.op(f"fpext half {w.op(f'bitcast i16 {bits} to half')} to float")


@emits("tt.bitcast")
def bitcast(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return reinterpret(w, op, x[0], kinds[0], result)


def reinterpret(w: FunctionWriter, op: Op, x: str, source: Type, result: Type) -> str:
    """The same bits as another type."""
    if source.element == "ptr" or source.register == result.register == source.storage:
        return x
    if source.bits != result.bits:
        raise op.refuse(f"a bitcast from {source} to {result}, which have different widths")
    bits, integer = x, f"i{source.bits}"
    if source.element == "bf16":
        bits = w.bfloat16(bits)
    elif source.element == "f16":
        bits = w.op(f"bitcast half {w.op(f'fptrunc float {bits} to half')} to i16")
    elif source.is_float:
        bits = w.op(f"bitcast {source.register} {bits} to {integer}")
    if result.element == "bf16":
        wide = w.op(f"zext i16 {bits} to i32")
        return w.op(f"bitcast i32 {w.op(f'shl i32 {wide}, 16')} to float")
    if result.element == "f16":
        return w.op(f"fpext half {w.op(f'bitcast i16 {bits} to half')} to float")
    return w.op(f"bitcast {integer} {bits} to {result.register}") if result.is_float else bits


@emits("tt.ptr_to_int")
def pointer_to_integer(
    w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type
) -> str:
    return w.op(f"ptrtoint ptr {x[0]} to {result.register}")


@emits("tt.int_to_ptr")
def integer_to_pointer(
    w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type
) -> str:
    return w.op(f"inttoptr {kinds[0].register} {x[0]} to ptr")
