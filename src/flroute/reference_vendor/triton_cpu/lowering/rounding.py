"""Arithmetic and casts that round in a direction: ``_rn`` to nearest, ``_rz`` to zero, ``_rd`` down, ``_ru`` up.

float32 is computed in float64 first, where the sum, product, quotient or root of float32 numbers leaves a remainder that
is exact, or exact in its sign: it says on which side of the nearest float32 number the value lies. float64 arithmetic
itself is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from flroute.reference_vendor.triton_cpu import function_text, vector_math
from flroute.reference_vendor.triton_cpu.emit import FunctionWriter
from flroute.reference_vendor.triton_cpu.ttir import Op
from flroute.reference_vendor.triton_cpu.types import Type

_WHOLE = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def call(w: FunctionWriter, name: str, kind: Type, *x: str) -> str:
    """A function by its name in the C library, or an intrinsic."""
    return vector_math.call(w.op, name, kind.register, x)


def literal(value: float, kind: Type) -> str:
    """A constant of the type."""
    return function_text.literal(value, kind.register)


def double(w: FunctionWriter, kind: Type, register: str) -> str:
    """Widened to float64."""
    return register if kind.register == "double" else w.op(f"fpext float {register} to double")


def narrow(w: FunctionWriter, kind: Type, register: str) -> str:
    """A float64 register, rounded to the type."""
    return register if kind.register == "double" else w.op(f"fptrunc double {register} to float")


def rounded(w: FunctionWriter, op: Op, name: str, mode: str, x: Sequence[str], result: Type) -> str:
    """An operation by its name, rounded as the mode says."""
    kind = result.register
    if name in {"rcp", "rsqrt"}:
        one = literal(1.0, result)
        if name == "rsqrt":
            root = w.op(f"call double @llvm.sqrt.f64(double {double(w, result, x[0])})")
            return narrow(w, result, w.op(f"fdiv double {function_text.literal(1.0, 'double')}, {root}"))
        name, x = "div", [one, *x]
    if mode == "rn":
        if name in {"sqrt", "fma"}:
            return call(w, name, result, *x)
        return w.op(f"f{name} {kind} {x[0]}, {x[1]}")
    if kind != "float":
        raise op.refuse("in float64 only rounding to nearest is supported")
    wide = [double(w, result, value) for value in x]
    if name == "sub":
        name, wide[1] = "add", w.op(f"fneg double {wide[1]}")
    if name == "fma":
        name, wide = "add", [w.op(f"fmul double {wide[0]}, {wide[1]}"), wide[2]]
    if name == "add":
        value, error = _two_sum(w, wide[0], wide[1], mode)
        return _directed(w, value, error, mode)
    if name == "mul":
        return _directed(w, w.op(f"fmul double {wide[0]}, {wide[1]}"), None, mode)
    if name == "sqrt":
        return _by_remainder(w, w.op(f"call double @llvm.sqrt.f64(double {wide[0]})"), wide[0], None, mode)
    return _by_remainder(w, w.op(f"fdiv double {wide[0]}, {wide[1]}"), wide[0], wide[1], mode)


def _two_sum(w: FunctionWriter, a: str, b: str, mode: str) -> tuple[str, str]:
    """a + b and what its rounding lost, both exact (Knuth). A sum that cancels is -0 when rounding down."""
    total = w.op(f"fadd double {a}, {b}")
    part = w.op(f"fsub double {total}, {a}")
    first = w.op(f"fsub double {a}, {w.op(f'fsub double {total}, {part}')}")
    error = w.op(f"fadd double {first}, {w.op(f'fsub double {b}, {part}')}")
    if mode == "rd":
        opposite = w.op(f"fsub double {w.op(f'fneg double {a}')}, {b}")
        total = w.op(f"fneg double {opposite}")
    return total, error


def _directed(w: FunctionWriter, value: str, error: str | None, mode: str) -> str:
    """``value + error``, float64 numbers, rounded to float32 in a direction."""
    near = w.op(f"fptrunc double {value} to float")
    off = w.op(f"fsub double {value}, {w.op(f'fpext float {near} to double')}")
    if error is not None:
        off = w.op(f"select i1 {w.op(f'fcmp une double {off}, 0.0')}, double {off}, double {error}")
    return _step(w, near, off, mode)


def _by_remainder(w: FunctionWriter, value: str, a: str, b: str | None, mode: str) -> str:
    """A quotient ``a / b``, or the root of ``a``, rounded: the remainder's sign says on which side of the nearest it lies."""
    near = w.op(f"fptrunc double {value} to float")
    wide = w.op(f"fpext float {near} to double")
    minus = w.op(f"fneg double {wide}")
    rest = w.op(f"call double @llvm.fma.f64(double {minus}, double {b or wide}, double {a})")
    return _step(w, near, rest if b is None else w.op(f"fdiv double {rest}, {b}"), mode)


def _step(w: FunctionWriter, near: str, off: str, mode: str, kind: str = "float") -> str:
    """One number further if the exact value lies beyond ``near`` on the wrong side of the direction."""
    infinity, lowest = function_text.literal(float("inf"), kind), function_text.literal(-float("inf"), kind)
    nextafter = "nextafterf" if kind == "float" else "nextafter"
    down = w.op(f"call {kind} @{nextafter}({kind} {near}, {kind} {lowest})")
    up = w.op(f"call {kind} @{nextafter}({kind} {near}, {kind} {infinity})")
    below, above = w.op(f"fcmp olt double {off}, 0.0"), w.op(f"fcmp ogt double {off}, 0.0")
    if mode == "rz":
        below = w.op(f"and i1 {below}, {w.op(f'fcmp ogt {kind} {near}, 0.0')}")
        above = w.op(f"and i1 {above}, {w.op(f'fcmp olt {kind} {near}, 0.0')}")
    moved = near
    if mode in {"rd", "rz"}:
        moved = w.op(f"select i1 {below}, {kind} {down}, {kind} {moved}")
    if mode in {"ru", "rz"}:
        moved = w.op(f"select i1 {above}, {kind} {up}, {kind} {moved}")
    return moved


# casts


def cast(w: FunctionWriter, names: tuple[str, str], mode: str, x: str, kind: Type, result: Type) -> str:
    """The names say what is unsigned; the types do not."""
    source, target = names
    if kind.is_float and result.is_float:
        return narrow(w, result, x) if mode == "rn" else _directed(w, x, None, mode)
    if result.is_integer:
        whole = call(w, _WHOLE[mode], kind, x)
        return saturated(w, whole, kind, result, signed=not target.startswith("u"))
    sign, bits = ("u" if source.startswith("u") else "s"), kind.register
    if mode == "rn":
        return w.op(f"{sign}itofp {bits} {x} to {result.register}")
    half = kind.bits // 2  # both halves are float64 numbers, and so is what their sum loses
    high = w.op(f"{'lshr' if sign == 'u' else 'ashr'} {bits} {x}, {half}")
    low = w.op(f"sub {bits} {x}, {w.op(f'shl {bits} {high}, {half}')}")
    scale = function_text.literal(2.0**half, "double")
    upper = w.op(f"fmul double {w.op(f'{sign}itofp {bits} {high} to double')}, {scale}")
    value, error = _two_sum(w, upper, w.op(f"uitofp {bits} {low} to double"), mode)
    if result.register == "float":
        return _directed(w, value, error, mode)
    return _step(w, value, error, mode, "double")


def saturated(w: FunctionWriter, x: str, kind: Type, result: Type, *, signed: bool = True) -> str:
    """A float as an integer, its fraction cut off: the nearest there is where it is out of range.

    What is not a number becomes 0, but the highest bit alone from float64 and in 64 bits, as in NVIDIA's instruction set.
    """
    suffix = "f64" if kind.register == "double" else "f32"
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{result.register}.{suffix}"
    value = w.op(f"call {result.register} @{name}({kind.register} {x})")
    if kind.element != "f64" and result.bits < 64:
        return value
    unknown, highest = w.op(f"fcmp uno {kind.register} {x}, {x}"), 1 << (result.bits - 1)
    return w.op(f"select i1 {unknown}, {result.register} {highest}, {result.register} {value}")
