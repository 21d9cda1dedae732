"""``vector_math``'s functions of float64, and the power of float32, which needs its logarithm in float64.

Sources: log after fdlibm (e_log.c), tanh after Moshier's Cephes (tanh.c), exp as its Taylor series, erf and erfc as
``reference_vendor/error_functions.py`` says. The test compares each with the exact value over its whole range.
"""

from __future__ import annotations

from math import factorial, log

from flroute.reference_vendor.error_functions import POLE, SCALED, SERIES
from flroute.reference_vendor.triton_cpu.function_text import Body

_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_EXP = tuple(1 / factorial(n) for n in range(13, -1, -1))  # off by 5e-18 where |r| <= log(2) / 2
_LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
    2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01,
)  # fmt: skip
_TANH_ABOVE = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_BELOW = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)


def functions() -> list[str]:
    """The text of each."""
    return [_exp(), _exp2(), _log(), _tanh(), _erfc(), _erf(), _pow()]


def _power_of_two(b: Body, power: str) -> str:
    """2**power for an integer in [-1022, 1023]."""
    bits = b.op(f"shl i64 {b.op(f'sext i32 {power} to i64')}, 52")
    return b.op(f"bitcast i64 {b.op(f'add i64 {bits}, {1023 << 52}')} to double")


def _scaled(b: Body, series: str, n: str) -> str:
    """series * 2**n, in halves, so that only the last multiplication rounds or overflows."""
    power = b.op(f"freeze i32 {b.op(f'fptosi double {n} to i32')}")  # of a NaN: the series is a NaN already
    half = b.op(f"ashr i32 {power}, 1")
    rest = b.op(f"sub i32 {power}, {half}")
    return b.binary("fmul", b.binary("fmul", series, _power_of_two(b, half)), _power_of_two(b, rest))


def _exp() -> str:
    b = Body("double")
    x = b.clamp("%x", -746.0, 710.0)
    n = b.intrinsic("rint", b.binary("fmul", x, b.constant(1 / log(2))))
    minus = b.op(f"fneg double {n}")
    r = b.fma(minus, b.constant(_LN2_LOW), b.fma(minus, b.constant(_LN2_HIGH), x))
    return b.function("vector_exp_double", _scaled(b, b.polynomial(r, _EXP), n))


def _exp2() -> str:
    b = Body("double")
    x = b.clamp("%x", -1076.0, 1025.0)
    n = b.intrinsic("rint", x)
    r = b.binary("fmul", b.binary("fsub", x, n), b.constant(log(2)))
    return b.function("vector_exp2_double", _scaled(b, b.polynomial(r, _EXP), n))


def _log() -> str:
    """log(m 2**k), m in [sqrt(1/2), sqrt(2)): with f = m - 1 and s = f / (2 + f), log(m) = f - f^2/2 + s (f^2/2 + R(s^2))."""
    b = Body("double")
    tiny = b.compare("olt", "%x", b.constant(2.2250738585072014e-308))
    x = b.select(tiny, b.binary("fmul", "%x", b.constant(2.0**54)), "%x")
    bits = b.op(f"bitcast double {x} to i64")
    high = b.op(f"trunc i64 {b.op(f'lshr i64 {bits}, 32')} to i32")
    exponent = b.op(f"ashr i32 {b.op(f'sub i32 {high}, {0x3FE6A09E}')}, 20")  # the upper bits of sqrt(1/2)
    lifted = b.op(f"shl i64 {b.op(f'sext i32 {exponent} to i64')}, 52")
    mantissa = b.op(f"bitcast i64 {b.op(f'sub i64 {bits}, {lifted}')} to double")
    k = b.binary(
        "fadd",
        b.op(f"sitofp i32 {exponent} to double"),
        b.select(tiny, b.constant(-54.0), b.constant(0.0)),
    )
    f = b.binary("fadd", mantissa, b.constant(-1.0))
    s = b.binary("fdiv", f, b.binary("fadd", f, b.constant(2.0)))
    z = b.binary("fmul", s, s)
    half_square = b.binary("fmul", b.binary("fmul", f, f), b.constant(0.5))
    series = b.binary("fadd", half_square, b.binary("fmul", z, b.polynomial(z, _LOG)))
    low = b.fma(k, b.constant(_LN2_LOW), b.binary("fmul", s, series))
    tail = b.binary("fsub", b.binary("fsub", half_square, low), f)
    value = b.binary("fsub", b.binary("fmul", k, b.constant(_LN2_HIGH)), tail)
    value = b.select(b.compare("oeq", "%x", b.constant(float("inf"))), "%x", value)
    value = b.select(b.compare("oeq", "%x", b.constant(0.0)), b.constant(float("-inf")), value)
    nan = b.constant(float("nan"))
    return b.function("vector_log_double", b.select(b.compare("ult", "%x", b.constant(0.0)), nan, value))


def _tanh() -> str:
    b = Body("double")
    size, z = b.intrinsic("fabs", "%x"), b.binary("fmul", "%x", "%x")
    ratio = b.binary("fdiv", b.polynomial(z, _TANH_ABOVE), b.polynomial(z, _TANH_BELOW))
    near = b.fma(b.binary("fmul", ratio, z), "%x", "%x")
    t = b.select(b.compare("ogt", size, b.constant(20.0)), b.constant(20.0), size)  # tanh(20) rounds to 1
    power = b.call("vector_exp_double", b.binary("fadd", t, t))
    quotient = b.binary("fdiv", b.constant(2.0), b.binary("fadd", power, b.constant(1.0)))
    far = b.binary("fsub", b.constant(1.0), quotient)
    value = b.select(b.compare("olt", size, b.constant(0.625)), near, far)
    return b.function("vector_tanh_double", b.intrinsic("copysign", value, "%x"))


def _erfc() -> str:
    b = Body("double")
    size = b.intrinsic("fabs", "%x")
    z = b.select(b.compare("ogt", size, b.constant(30.0)), b.constant(30.0), size)  # erfc(30) is 0
    quotient = b.binary("fdiv", b.constant(2 * POLE), b.binary("fadd", z, b.constant(POLE)))
    t = b.binary("fsub", b.constant(1.0), quotient)
    shrunk = b.binary("fdiv", b.polynomial(t, SCALED[::-1]), b.fma(z, b.constant(2.0), b.constant(1.0)))
    square = b.binary("fmul", z, z)
    lost = b.fma(z, z, b.op(f"fneg double {square}"))  # what rounding the square leaves out
    power = b.call("vector_exp_double", b.op(f"fneg double {square}"))
    correct = b.fma(b.op(f"fneg double {power}"), lost, power)
    tail = b.binary("fmul", shrunk, correct)
    value = b.select(b.compare("olt", "%x", b.constant(0.0)), b.binary("fsub", b.constant(2.0), tail), tail)
    return b.function("vector_erfc_double", value)


def _erf() -> str:
    b = Body("double")
    size = b.intrinsic("fabs", "%x")
    near = b.binary("fmul", "%x", b.polynomial(b.binary("fmul", "%x", "%x"), SERIES[::-1]))
    far = b.binary("fsub", b.constant(1.0), b.call("vector_erfc_double", size))
    signed = b.intrinsic("copysign", far, "%x")
    return b.function("vector_erf_double", b.select(b.compare("olt", size, b.constant(0.5)), near, signed))


def _pow() -> str:
    """x**y of float32 as 2**(y log2|x|) in float64; the sign, and which cases are 1 or NaN, as C's pow has them."""
    b = Body("double")
    x, y = b.op("fpext float %x to double"), b.op("fpext float %y to double")
    size, one, zero = b.intrinsic("fabs", x), b.constant(1.0), b.constant(0.0)
    exponent = b.binary("fmul", y, b.call("vector_log_double", size))
    power = b.call("vector_exp_double", exponent)
    whole = b.compare("oeq", y, b.intrinsic("trunc", y))
    half = b.binary("fmul", y, b.constant(0.5))
    odd = b.op(f"and i1 {whole}, {b.compare('one', half, b.intrinsic('trunc', half))}")
    signed = b.select(odd, b.intrinsic("copysign", power, x), power)
    finite_below = b.op(
        f"and i1 {b.compare('olt', x, zero)}, {b.compare('one', size, b.constant(float('inf')))}"
    )
    imaginary = b.op(f"and i1 {finite_below}, {b.op(f'xor i1 {whole}, true')}")
    value = b.select(imaginary, b.constant(float("nan")), signed)
    endless = b.compare("oeq", b.intrinsic("fabs", y), b.constant(float("inf")))
    balanced = b.op(f"and i1 {endless}, {b.compare('oeq', size, one)}")
    unit = b.op(f"or i1 {b.compare('oeq', y, zero)}, {b.compare('oeq', x, one)}")
    value = b.select(b.op(f"or i1 {unit}, {balanced}"), one, value)
    b.kind = "float"
    result = b.op(f"fptrunc double {value} to float")
    return b.function("vector_pow", result, parameters="xy")
