"""CUDA's libdevice functions, by the symbols that ``triton.language.extra.libdevice`` calls.

A symbol names an operation, then its type or its rounding: ``__nv_expf`` is exp of float32, ``__nv_fadd_rd`` an addition
rounded down. A table has what is computed here; every other name is the C library's, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from flroute.reference_vendor.triton_cpu import function_text
from flroute.reference_vendor.triton_cpu.emit import FunctionWriter
from flroute.reference_vendor.triton_cpu.lowering.elementwise import emits, real_function
from flroute.reference_vendor.triton_cpu.lowering.rounding import (
    call,
    cast,
    double,
    literal,
    narrow,
    rounded,
    saturated,
)
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type

Compute = Callable[[FunctionWriter, Sequence[str], Sequence[Type], Type], str]
_COMPUTE: dict[str, Compute] = {}

_ROUNDED = re.compile(r"(?:[fd]?(add|sub|mul|div|rcp|sqrt|rsqrt)|(fmaf?))_(rn|rz|rd|ru)")
_CAST = re.compile(r"(float|double|int|uint|ll|ull)2(float|double|int|uint|ll|ull)_(rn|rz|rd|ru)")


def computes(*names: str) -> Callable[[Compute], Compute]:
    """Register how the functions of these names, without ``__nv_``, are computed."""

    def register(compute: Compute) -> Compute:
        _COMPUTE.update(dict.fromkeys(names, compute))
        return compute

    return register


@emits("tt.extern_elementwise")
def library_function(w: FunctionWriter, op: Op, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    match = re.search(r'symbol = "__nv_(?:fast_)?(\w+)"', op.text)
    if match is None:
        raise op.refuse(f"a function of another library: {op.text[:100]}")
    name = match[1]
    if compute := _COMPUTE.get(name):
        return compute(w, x, kinds, result)
    if found := _ROUNDED.fullmatch(name):
        return rounded(w, op, found[1] or "fma", found[3], x, result)
    if found := _CAST.fullmatch(name):
        return cast(w, (found[1], found[2]), found[3], x[0], kinds[0], result)
    if "f32" in {kind.element for kind in kinds} and name.endswith("f") and name != "erf":
        name = name[:-1]
    if compute := _COMPUTE.get(name):
        return compute(w, x, kinds, result)
    return real_function(w, op, name, x, result)


def _whole_number(rounding: str) -> Compute:
    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        return saturated(w, call(w, rounding, kinds[0], x[0]), kinds[0], result)

    return compute


_COMPUTE |= {"llrint": _whole_number("rint"), "llround": _whole_number("round")}


@computes(
    "float_as_int",
    "float_as_uint",
    "int_as_float",
    "uint_as_float",
    "longlong_as_double",
    "double_as_longlong",
)
def reinterpret(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"bitcast {kinds[0].register} {x[0]} to {result.register}")


@computes("double2loint")
def low_half(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"trunc i64 {w.op(f'bitcast double {x[0]} to i64')} to i32")


@computes("double2hiint")
def high_half(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    bits = w.op(f"bitcast double {x[0]} to i64")
    return w.op(f"trunc i64 {w.op(f'lshr i64 {bits}, 32')} to i32")


@computes("hiloint2double")
def from_halves(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    high, low = w.op(f"zext i32 {x[0]} to i64"), w.op(f"zext i32 {x[1]} to i64")
    bits = w.op(f"or i64 {w.op(f'shl i64 {high}, 32')}, {low}")
    return w.op(f"bitcast i64 {bits} to double")


# integers


def _intrinsic(name: str, tail: str = "") -> Compute:
    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        kind = kinds[0].register
        value = w.op(f"call {kind} @llvm.{name}.{kind}({kind} {x[0]}{tail})")
        return value if kind == result.register else w.op(f"trunc {kind} {value} to {result.register}")

    return compute


_COMPUTE |= dict.fromkeys(("abs", "llabs"), _intrinsic("abs", ", i1 false"))
_COMPUTE |= dict.fromkeys(("clz", "clzll"), _intrinsic("ctlz", ", i1 false"))
_COMPUTE |= dict.fromkeys(("popc", "popcll"), _intrinsic("ctpop"))
_COMPUTE |= dict.fromkeys(("brev", "brevll"), _intrinsic("bitreverse"))


@computes("ffs", "ffsll")
def first_set_bit(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """Counted from one; 0 if no bit is set."""
    kind = kinds[0].register
    zeros = w.op(f"call {kind} @llvm.cttz.{kind}({kind} {x[0]}, i1 false)")
    place = w.op(f"select i1 {w.op(f'icmp eq {kind} {x[0]}, 0')}, {kind} -1, {kind} {zeros}")
    place = place if kind == result.register else w.op(f"trunc {kind} {place} to {result.register}")
    return w.op(f"add {result.register} {place}, 1")


def _widened(name: str, extend: str, shift: str) -> Compute:
    """Computed in twice the width, of which the upper bits or a half are taken."""

    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        kind, bits = result.register, result.bits
        wide = f"i{2 * bits}"
        a, b = (w.op(f"{extend} {kind} {value} to {wide}") for value in x)
        if name == "mul":
            value, by = w.op(f"mul {wide} {a}, {b}"), bits
        else:
            value, by = w.op(f"add {wide} {a}, {b}"), 1
            if name == "rounded":
                value = w.op(f"add {wide} {value}, 1")
        return w.op(f"trunc {wide} {w.op(f'{shift} {wide} {value}, {by}')} to {kind}")

    return compute


_COMPUTE |= dict.fromkeys(("mulhi", "mul64hi"), _widened("mul", "sext", "ashr"))
_COMPUTE |= dict.fromkeys(("umulhi", "umul64hi"), _widened("mul", "zext", "lshr"))
_COMPUTE |= {"hadd": _widened("half", "sext", "ashr"), "uhadd": _widened("half", "zext", "lshr")}
_COMPUTE |= {"rhadd": _widened("rounded", "sext", "ashr"), "urhadd": _widened("rounded", "zext", "lshr")}


def _low_24_bits(shift: str) -> Compute:
    """The low 32 bits of the product of two numbers' low 24 bits."""

    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        a, b = (w.op(f"{shift} i32 {w.op(f'shl i32 {value}, 8')}, 8") for value in x)
        return w.op(f"mul i32 {a}, {b}")

    return compute


_COMPUTE |= {"mul24": _low_24_bits("ashr"), "umul24": _low_24_bits("lshr")}


def _distance(less: str) -> Compute:
    """``|x - y| + z``."""

    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        swapped = w.op(f"icmp {less} i32 {x[0]}, {x[1]}")
        difference, opposite = w.op(f"sub i32 {x[0]}, {x[1]}"), w.op(f"sub i32 {x[1]}, {x[0]}")
        distance = w.op(f"select i1 {swapped}, i32 {opposite}, i32 {difference}")
        return w.op(f"add i32 {distance}, {x[2]}")

    return compute


_COMPUTE |= {"sad": _distance("slt"), "usad": _distance("ult")}


# properties of a float


def _property(compare: str) -> Compute:
    """A comparison of the size with infinity: NaN is ``uno``, infinity ``oeq``, finite ``olt``."""

    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        size = call(w, "fabs", kinds[0], x[0])
        holds = w.op(f"fcmp {compare} {kinds[0].register} {size}, {literal(float('inf'), kinds[0])}")
        return holds if result.element == "i1" else w.op(f"zext i1 {holds} to {result.register}")

    return compute


_COMPUTE |= dict.fromkeys(("isnanf", "isnand"), _property("uno"))
_COMPUTE |= dict.fromkeys(("isinff", "isinfd"), _property("oeq"))
_COMPUTE |= dict.fromkeys(("finitef", "isfinited"), _property("olt"))


@computes("signbitf", "signbitd")
def sign_bit(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    kind, bits = kinds[0].register, kinds[0].bits
    sign = w.op(f"lshr i{bits} {w.op(f'bitcast {kind} {x[0]} to i{bits}')}, {bits - 1}")
    return sign if result.bits == bits else w.op(f"trunc i{bits} {sign} to {result.register}")


@computes("ilogb")
def integer_exponent(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"call i32 @ilogb(double {double(w, kinds[0], x[0])})")


# functions of real numbers, composed: float32 in float64


@computes("saturate")
def saturate(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    """Into [0, 1], NaN to 0."""
    raised = w.op(f"select i1 {w.op(f'fcmp ogt float {x[0]}, 0.0')}, float {x[0]}, float 0.0")
    one = function_text.literal(1.0, "float")
    return w.op(f"select i1 {w.op(f'fcmp olt float {raised}, {one}')}, float {raised}, float {one}")


@computes("fdividef")
def divide(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    return w.op(f"fdiv float {x[0]}, {x[1]}")


@computes("ldexp", "scalbn")
def scale_by_power(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    name = "ldexpf" if result.register == "float" else "ldexp"
    return w.op(f"call {result.register} @{name}({result.register} {x[0]}, i32 {x[1]})")


@computes("powi")
def integer_power(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
    power = w.op(f"sitofp i32 {x[1]} to double")
    return narrow(w, result, w.op(f"call double @pow(double {double(w, result, x[0])}, double {power})"))


def _bessel(name: str) -> Compute:
    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        value = w.op(f"call double @{name}(i32 {x[0]}, double {double(w, result, x[1])})")
        return narrow(w, result, value)

    return compute


_COMPUTE |= {"jn": _bessel("jn"), "yn": _bessel("yn")}


def _composed(formula: Callable[[FunctionWriter, list[str]], str]) -> Compute:
    """A formula in float64 registers."""

    def compute(w: FunctionWriter, x: Sequence[str], kinds: Sequence[Type], result: Type) -> str:
        return narrow(w, result, formula(w, [double(w, result, value) for value in x]))

    return compute


_DOUBLE = Type((), "f64")


def _inverse(w: FunctionWriter, x: str) -> str:
    return w.op(f"fdiv double {literal(1.0, _DOUBLE)}, {x}")


def _norm(w: FunctionWriter, x: list[str]) -> str:
    total = x[0]
    for value in x[1:]:
        total = call(w, "hypot", _DOUBLE, total, value)
    return total


def _normal_distribution(w: FunctionWriter, x: list[str]) -> str:
    scaled = w.op(f"fmul double {x[0]}, {literal(-(0.5**0.5), _DOUBLE)}")
    return w.op(f"fmul double {call(w, 'erfc', _DOUBLE, scaled)}, {literal(0.5, _DOUBLE)}")


def _of_pi(quarter: int) -> Callable[[FunctionWriter, list[str]], str]:
    """sin(pi x), or cos(pi x) a quarter of a period later: x is brought into [-1/4, 1/4] before it is multiplied by pi."""

    def formula(w: FunctionWriter, x: list[str]) -> str:
        turn = w.op(f"frem double {x[0]}, {literal(2.0, _DOUBLE)}")
        halves = w.op(f"fadd double {turn}, {turn}")
        n = call(w, "rint", _DOUBLE, halves)
        half_pi = literal(1.5707963267948966, _DOUBLE)
        rest = w.op(f"fmul double {w.op(f'fsub double {halves}, {n}')}, {half_pi}")
        sine, cosine = call(w, "sin", _DOUBLE, rest), call(w, "cos", _DOUBLE, rest)
        whole = w.op(
            f"freeze i32 {w.op(f'fptosi double {n} to i32')}"
        )  # of a NaN: any; sine and cosine are NaN
        which = w.op(f"add i32 {whole}, {quarter}")
        odd = w.op(f"icmp ne i32 {w.op(f'and i32 {which}, 1')}, 0")
        value = w.op(f"select i1 {odd}, double {cosine}, double {sine}")
        flipped = w.op(f"icmp ne i32 {w.op(f'and i32 {which}, 2')}, 0")
        return w.op(f"select i1 {flipped}, double {w.op(f'fneg double {value}')}, double {value}")

    return formula


_COMPUTE |= dict.fromkeys(("norm3d", "norm4d"), _composed(_norm))
_COMPUTE |= dict.fromkeys(("rnorm3d", "rnorm4d", "rhypot"), _composed(lambda w, x: _inverse(w, _norm(w, x))))
_COMPUTE["rcbrt"] = _composed(lambda w, x: _inverse(w, call(w, "cbrt", _DOUBLE, x[0])))
_COMPUTE["normcdf"] = _composed(_normal_distribution)
_COMPUTE |= {"sinpi": _composed(_of_pi(0)), "cospi": _composed(_of_pi(1))}
