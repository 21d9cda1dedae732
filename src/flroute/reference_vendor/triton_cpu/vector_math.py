"""Functions of one element that LLVM can inline and vectorise, as LLVM IR text, and what is left to the C library.

No PyPI wheel brings a vector math library, and a call to libm stops vectorisation: the functions that kernels use in
their hot loops are polynomials, of float32 here, of float64 in ``vector_math_float64.py``. The rarer ones are libm's.

Sources: exp, log, tanh after Moshier's Cephes (expf.c, logf.c, tanhf.c); erf: a minimax fit by N. Juffa, error below
1 ulp. The test compares every function with the exact value over its whole range, special values included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from flroute.reference_vendor.triton_cpu import vector_math_float64
from flroute.reference_vendor.triton_cpu.function_text import Body, literal

LIBM_UNARY = frozenset(
    ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "erf", "erfc", "exp", "exp10", "exp2", "expm1",
     "j0", "j1", "y0", "y1", "lgamma", "log", "log10", "log1p", "log2", "logb", "sin", "sinh", "tan", "tanh", "tgamma"]
)  # fmt: skip
LIBM_BINARY = frozenset(["atan2", "fdim", "fmod", "hypot", "nextafter", "pow", "remainder"])
LIBM_OTHER = (
    ("ilogb", "i32", "double"), ("ldexp", "double", "double, i32"), ("ldexpf", "float", "float, i32"),
    ("jn", "double", "i32, double"), ("yn", "double", "i32, double"),
)  # fmt: skip
INTRINSIC = {  # name -> (LLVM intrinsic, arity)
    "sqrt": ("sqrt", 1), "fabs": ("fabs", 1), "abs": ("fabs", 1), "floor": ("floor", 1), "ceil": ("ceil", 1), "trunc": ("trunc", 1),
    "rint": ("rint", 1), "nearbyint": ("nearbyint", 1), "round": ("round", 1), "fma": ("fma", 3), "copysign": ("copysign", 2),
}  # fmt: skip
VECTOR = {  # what takes no call to libm, and what it is called here
    "float": {name: f"vector_{name}" for name in ("exp", "exp2", "log", "log2", "tanh", "erf", "pow")},
    "double": {name: f"vector_{name}_double" for name in ("exp", "exp2", "log", "tanh", "erf", "erfc")},
}


def arity(name: str) -> int | None:
    """How many arguments a function takes; None if it is not known here."""
    if name in INTRINSIC:
        return INTRINSIC[name][1]
    if name in LIBM_UNARY or name == "rsqrt":
        return 1
    return 2 if name in LIBM_BINARY else None


def call(op: Callable[[str], str], name: str, llvm_type: str, arguments: Sequence[str]) -> str:
    """Write a call of a function on registers of ``float`` or ``double``."""
    suffix = "f32" if llvm_type == "float" else "f64"
    values = ", ".join(f"{llvm_type} {argument}" for argument in arguments)
    if name in INTRINSIC:
        return op(f"call {llvm_type} @llvm.{INTRINSIC[name][0]}.{suffix}({values})")
    if name == "rsqrt":
        root = op(f"call {llvm_type} @llvm.sqrt.{suffix}({values})")
        return op(f"fdiv {llvm_type} {literal(1.0, llvm_type)}, {root}")
    if name in VECTOR[llvm_type]:
        return op(f"call {llvm_type} @{VECTOR[llvm_type][name]}({values})")
    return op(f"call {llvm_type} @{name}{'f' if llvm_type == 'float' else ''}({values})")


def rounded_to_odd(op: Callable[[str], str], x: str) -> str:
    """Write the rounding of a ``double`` register to ``float``: cut off, and the last bit set if anything was lost."""
    near = op(f"fptrunc double {x} to float")
    wide = op(f"fpext float {near} to double")
    sizes = [op(f"call double @llvm.fabs.f64(double {v})") for v in (wide, x)]
    beyond = op(f"zext i1 {op(f'fcmp ogt double {sizes[0]}, {sizes[1]}')} to i32")
    cut = op(f"sub i32 {op(f'bitcast float {near} to i32')}, {beyond}")
    lost = op(f"zext i1 {op(f'fcmp one double {wide}, {x}')} to i32")
    return op(f"bitcast i32 {op(f'or i32 {cut}, {lost}')} to float")


def _f(value: float) -> str:
    return literal(value, "float")


def _power_of_two(b: Body, power: str) -> str:
    """2**power for an integer in [-126, 127]."""
    bits = b.op(f"shl i32 {power}, 23")
    return b.op(f"bitcast i32 {b.op(f'add i32 {bits}, {127 << 23}')} to float")


_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _exponential(b: Body, x: str, unit: Callable[[str, str], str], per_unit: float) -> tuple[str, str]:
    """exp(r) and n, where x = n + r in the unit of the base's powers: r = unit(x, n), n the nearest integer to x * per_unit."""
    scaled = x if per_unit == 1 else b.op(f"fmul float {x}, {_f(per_unit)}")
    n = b.op(f"call float @llvm.rint.f32(float {scaled})")
    r = unit(x, n)
    series = b.fma(b.polynomial(r, _EXP), b.op(f"fmul float {r}, {r}"), b.op(f"fadd float {r}, {_f(1.0)}"))
    whole = b.op(f"fptosi float {n} to i32")
    return series, b.op(f"freeze i32 {whole}")  # of a NaN: any integer will do, the series is a NaN already


def _scaled(
    b: Body, name: str, low: float, high: float, unit: Callable[[str, str], str], per_unit: float
) -> str:
    """The whole range: the power of two is applied in halves, so that only the last multiplication rounds or overflows."""
    x = b.select(
        b.compare("ogt", "%x", _f(high)), _f(high), b.select(b.compare("olt", "%x", _f(low)), _f(low), "%x")
    )
    series, n = _exponential(b, x, unit, per_unit)
    half = b.op(f"ashr i32 {n}, 1")
    rest = b.op(f"sub i32 {n}, {half}")
    once = b.op(f"fmul float {series}, {_power_of_two(b, half)}")
    return b.function(name, b.op(f"fmul float {once}, {_power_of_two(b, rest)}"))


def _log2_parts(b: Body) -> Callable[[str, str], str]:
    def reduce(x: str, n: str) -> str:
        minus = b.op(f"fneg float {n}")
        return b.fma(minus, _f(-2.12194440e-4), b.fma(minus, _f(0.693359375), x))

    return reduce


def _exp() -> str:
    b = Body()
    return _scaled(b, "vector_exp", -104.0, 89.0, _log2_parts(b), 1.4426950408889634)


def _exp_moderate() -> str:
    """exp for |x| < 80, without the steps that only the ends of the range need."""
    b = Body()
    series, n = _exponential(b, "%x", _log2_parts(b), 1.4426950408889634)
    return b.function("vector_exp_moderate", b.op(f"fmul float {series}, {_power_of_two(b, n)}"))


def _exp2() -> str:
    b = Body()
    return _scaled(
        b,
        "vector_exp2",
        -151.0,
        129.0,
        lambda x, n: b.op(f"fmul float {b.op(f'fsub float {x}, {n}')}, {_f(0.6931471805599453)}"),
        1,
    )


_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
    -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def _logarithm(name: str, *, binary: bool) -> str:
    """log(m * 2**e), m in [sqrt(1/2), sqrt(2)): a polynomial in m - 1."""
    b = Body()
    tiny = b.compare("olt", "%x", _f(1.1754943508222875e-38))
    x = b.select(tiny, b.op(f"fmul float %x, {_f(8388608.0)}"), "%x")
    bits = b.op(f"bitcast float {x} to i32")
    shifted = b.op(f"sub i32 {bits}, {0x3F3504F3}")  # the bits of sqrt(1/2)
    exponent = b.op(f"ashr i32 {shifted}, 23")
    lifted = b.op(f"shl i32 {exponent}, 23")
    mantissa = b.op(f"bitcast i32 {b.op(f'sub i32 {bits}, {lifted}')} to float")
    power = b.op(
        f"fadd float {b.op(f'sitofp i32 {exponent} to float')}, {b.select(tiny, _f(-23.0), _f(0.0))}"
    )
    f = b.op(f"fadd float {mantissa}, {_f(-1.0)}")
    z = b.op(f"fmul float {f}, {f}")
    series = b.op(f"fmul float {b.op(f'fmul float {f}, {z}')}, {b.polynomial(f, _LOG)}")
    if binary:
        tail = b.fma(z, _f(-0.5), series)
        low = b.fma(f, _f(0.44269504088896340736), b.op(f"fmul float {tail}, {_f(1.44269504088896340736)}"))
        value = b.op(f"fadd float {b.op(f'fadd float {low}, {f}')}, {power}")
    else:
        tail = b.fma(power, _f(-2.12194440e-4), series)
        value = b.fma(power, _f(0.693359375), b.op(f"fadd float {b.fma(z, _f(-0.5), tail)}, {f}"))
    value = b.select(b.compare("oeq", "%x", _f(float("inf"))), "%x", value)
    value = b.select(b.compare("oeq", "%x", _f(0.0)), _f(float("-inf")), value)
    return b.function(name, b.select(b.compare("ult", "%x", _f(0.0)), _f(float("nan")), value))


_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def _tanh() -> str:
    b = Body()
    size = b.op("call float @llvm.fabs.f32(float %x)")
    z = b.op("fmul float %x, %x")
    near = b.fma(b.op(f"fmul float {b.polynomial(z, _TANH)}, {z}"), "%x", "%x")
    t = b.select(b.compare("ogt", size, _f(10.0)), _f(10.0), size)  # tanh(10) rounds to 1
    power = b.op(f"call float @vector_exp_moderate(float {b.op(f'fadd float {t}, {t}')})")
    ratio = b.op(f"fdiv float {_f(2.0)}, {b.op(f'fadd float {power}, {_f(1.0)}')}")
    far = b.op(f"fsub float {_f(1.0)}, {ratio}")
    value = b.select(b.compare("olt", size, _f(0.625)), near, far)
    return b.function("vector_tanh", b.op(f"call float @llvm.copysign.f32(float {value}, float %x)"))


_ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF_FAR = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)


def _erf() -> str:
    b = Body()
    size = b.op("call float @llvm.fabs.f32(float %x)")
    near = b.fma(b.polynomial(b.op("fmul float %x, %x"), _ERF_NEAR), "%x", "%x")
    t = b.select(b.compare("ogt", size, _f(4.0)), _f(4.0), size)  # erf(4) rounds to 1
    exponent = b.fma(b.polynomial(t, _ERF_FAR), t, b.op(f"fneg float {t}"))
    far = b.op(f"fsub float {_f(1.0)}, {b.op(f'call float @vector_exp_moderate(float {exponent})')}")
    signed = b.op(f"call float @llvm.copysign.f32(float {far}, float %x)")
    return b.function("vector_erf", b.select(b.compare("ogt", size, _f(0.927734375)), signed, near))


def _bfloat16() -> str:
    """The 16 bits of the bfloat16 nearest to a float32, ties to even; a NaN stays a NaN."""
    b = Body()
    bits = b.op("bitcast float %x to i32")
    odd = b.op(f"and i32 {b.op(f'lshr i32 {bits}, 16')}, 1")
    rounded = b.op(f"add i32 {bits}, {b.op(f'add i32 {odd}, 32767')}")
    quiet = b.op(f"or i32 {bits}, {0x400000}")
    chosen = b.select(b.compare("uno", "%x", "%x"), quiet, rounded, "i32")
    return b.function("bfloat16_bits", b.op(f"trunc i32 {b.op(f'lshr i32 {chosen}, 16')} to i16"), "i16")


@cache
def _functions() -> dict[str, str]:
    """Every function above by its name, and declarations of libm's, which have no effect and never fail."""
    pure = "nounwind willreturn memory(none)"
    texts = {
        f"{name}{suffix}": f"declare {kind} @{name}{suffix}({', '.join([kind] * count)}) {pure}\n"
        for kind, suffix in (("float", "f"), ("double", ""))
        for names, count in ((LIBM_UNARY, 1), (LIBM_BINARY, 2))
        for name in names
    }
    texts |= {
        name: f"declare {result} @{name}({arguments}) {pure}\n" for name, result, arguments in LIBM_OTHER
    }
    written = [
        _exp(),
        _exp_moderate(),
        _exp2(),
        _logarithm("vector_log", binary=False),
        _logarithm("vector_log2", binary=True),
        _tanh(),
        _erf(),
    ]
    for text in [*written, _bfloat16(), *vector_math_float64.functions()]:
        texts[text.partition("@")[2].partition("(")[0]] = text
    return texts


def prelude(code: str) -> str:
    """The functions that some LLVM IR calls, and those that they call."""
    texts, wanted, found = _functions(), [code], dict[str, str]()
    while wanted:
        for name in re.findall(r"call \w+ @(\w+)\(", wanted.pop()):
            if name in texts and name not in found:
                found[name] = texts[name]
                wanted.append(texts[name])
    return "".join(found.values())
