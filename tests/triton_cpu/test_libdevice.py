"""Every function of ``triton.language.extra.libdevice``, in every type it takes, against exact values."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import scipy.special
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.lowering import libdevice as lowering

REFUSED = {  # no C library has them, or only an approximation that is not accurate everywhere
    "byte_perm", "cyl_bessel_i0", "cyl_bessel_i1", "erfcinv", "erfcx", "erfinv", "normcdfinv", "rcp64h",
}  # fmt: skip
INTEGERS = np.array(
    [0, 1, -1, 2, -2, 7, 12345678, -87654321, 2**24 - 1, 2**24 + 1, 2**31 - 1, -(2**31), 0x55AA55AA, 1 << 23]
)
LONGS = np.array(
    [2**62 + 1, -(2**62) - 1, 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**32, 3 << 40, 2**25 + 3]
)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e-3,
    1e30,
    -1e30,
    1.5,
    100.25,
    math.inf,
    -math.inf,
    math.nan,
]
TINY_AND_HUGE = {
    np.float32: [1e-45, -1e-45, 1e-38, 3.4028235e38, -3.4028235e38],
    np.float64: [5e-324, 1e-308, 1.7e308],
}
BESSEL = {"j0", "j1", "jn", "y0", "y1", "yn"}
NUMPY = {
    "int32": np.int32, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64, "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip


def overloads() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each function's name, with the types of its arguments and of its result, as the module's source has them."""
    for node in ast.parse(inspect.getsource(libdevice)).body:
        if isinstance(node, ast.FunctionDef):
            (table,) = (found for found in ast.walk(node) if isinstance(found, ast.Dict))
            for key, value in zip(table.keys, table.values, strict=True):
                kinds = tuple(call.args[0].value for call in key.elts)
                yield node.name, kinds, value.elts[1].args[0].value


@triton.jit
def call_1(a, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, FUNCTION(tl.load(a + i, mask=i < n)), mask=i < n)


@triton.jit
def call_2(a, b, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(a + i, mask=i < n), tl.load(b + i, mask=i < n)
    tl.store(out + i, FUNCTION(x, y), mask=i < n)


@triton.jit
def call_3(a, b, c, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y, z = tl.load(a + i, mask=i < n), tl.load(b + i, mask=i < n), tl.load(c + i, mask=i < n)
    tl.store(out + i, FUNCTION(x, y, z), mask=i < n)


@triton.jit
def call_4(a, b, c, d, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y, z = tl.load(a + i, mask=i < n), tl.load(b + i, mask=i < n), tl.load(c + i, mask=i < n)
    tl.store(out + i, FUNCTION(x, y, z, tl.load(d + i, mask=i < n)), mask=i < n)


def samples(name: str, kind: str, position: int) -> np.ndarray:
    """Special values first, in another order for each argument, then random ones."""
    dtype, random = NUMPY[kind], np.random.default_rng(position)
    if not kind.startswith("fp"):
        values = np.concatenate(
            [INTEGERS, LONGS if kind.endswith("64") else [], random.integers(-(2**31), 2**31, 60)]
        )
        if name in {"ldexp", "scalbn", "jn", "yn", "pow"}:
            values = values % 20 if name[0] in "jy" else values % 300 - 150
        return np.roll(values.astype(np.int64), 3 * position).astype(dtype)
    usual = np.concatenate(
        [random.normal(size=60) * 3, random.uniform(0, 1, 30), 10 ** random.uniform(-10, 10, 30)]
    )
    if name in BESSEL:  # where scipy knows them: elsewhere it gives up
        return np.concatenate([[0.0, 1.0, math.nan], usual]).astype(dtype)
    return np.concatenate([np.roll(SPECIAL + TINY_AND_HUGE[dtype], 3 * position), usual]).astype(dtype)


def run(name: str, kinds: tuple[str, ...], result: str, arguments: list[np.ndarray]) -> np.ndarray:
    n = min(len(argument) for argument in arguments)
    tensors = [torch.from_numpy(argument[:n].copy()) for argument in arguments]
    out = torch.from_numpy(np.zeros(n, NUMPY[result]))
    kernel = {1: call_1, 2: call_2, 3: call_3, 4: call_4}[len(kinds)]
    kernel[(triton.cdiv(n, 64),)](*tensors, out, n, FUNCTION=getattr(libdevice, name), BLOCK=64)
    return out.numpy()


# what the functions are


def ffs(x: np.ndarray) -> np.ndarray:
    return np.array([(int(v) & -int(v)).bit_length() for v in x])


def bits(x: np.ndarray) -> Iterator[str]:
    width = x.itemsize * 8
    return (f"{int(v) % 2**width:0{width}b}" for v in x)


def away_from_zero(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        further = np.abs(x - np.trunc(x)) >= 0.5
    return np.trunc(x) + np.where(further, np.copysign(1.0, x), 0.0).astype(x.dtype)


INTEGER: dict[str, Callable[..., object]] = {
    "clz": lambda x: [len(b) - len(b.lstrip("0")) for b in bits(x)],
    "popc": lambda x: [b.count("1") for b in bits(x)],
    "brev": lambda x: [int(b[::-1], 2) for b in bits(x)],
    "ffs": ffs,
    "mulhi": lambda x, y: [int(a) * int(b) >> 8 * x.itemsize for a, b in zip(x, y, strict=True)],
    "mul24": lambda x, y: [low_24(a, x) * low_24(b, x) for a, b in zip(x, y, strict=True)],
    "sad": lambda x, y, z: [abs(int(a) - int(b)) + int(c) for a, b, c in zip(x, y, z, strict=True)],
    "hadd": lambda x, y: [(int(a) + int(b)) >> 1 for a, b in zip(x, y, strict=True)],
    "rhadd": lambda x, y: [(int(a) + int(b) + 1) >> 1 for a, b in zip(x, y, strict=True)],
    "int_as_float": lambda x: x.view(np.float32), "uint_as_float": lambda x: x.view(np.float32),
    "float_as_int": lambda x: x.view(np.int32), "float_as_uint": lambda x: x.view(np.uint32),
    "longlong_as_double": lambda x: x.view(np.float64), "double_as_longlong": lambda x: x.view(np.int64),
    "double2loint": lambda x: x.view(np.int64) & 0xFFFFFFFF, "double2hiint": lambda x: x.view(np.int64) >> 32,
    "hiloint2double": lambda high, low: (high.astype(np.int64) << 32 | low.astype(np.int64) & 0xFFFFFFFF).view(np.float64),
    "isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite, "isfinited": np.isfinite, "signbit": np.signbit,
    "ilogb": lambda x: [ilogb(v) for v in x.astype(np.float64)],
    "llrint": lambda x: saturated(np.rint(x), np.int64), "llround": lambda x: saturated(away_from_zero(x), np.int64),
}  # fmt: skip


def low_24(value: object, like: np.ndarray) -> int:
    low = int(value) & 0xFFFFFF
    return low - (1 << 24) if like.dtype == np.int32 and low >> 23 else low


def ilogb(x: float) -> int:
    if x == 0 or math.isnan(x):
        return -(2**31)
    return 2**31 - 1 if math.isinf(x) else math.frexp(x)[1] - 1


def saturated(x: np.ndarray, dtype: type) -> list[int]:
    """Kept in range; what is no number is 0, or the highest bit alone from or to 64 bits."""
    info = np.iinfo(dtype)
    unknown = 1 << (info.bits - 1) if x.dtype == np.float64 or info.bits == 64 else 0
    return [
        unknown
        if math.isnan(v)
        else int(min(max(v, info.min), info.max))
        if math.isinf(v)
        else min(max(int(v), info.min), info.max)
        for v in x.tolist()
    ]


def wrapped(values: object, dtype: type) -> np.ndarray:
    """Python's integers, cut to the type's width."""
    if np.dtype(dtype).kind in "iu":
        width = np.dtype(dtype).itemsize * 8
        return np.array([int(v) % 2**width for v in values], dtype=f"u{width // 8}").view(dtype)
    return np.asarray(values, dtype)


with np.errstate(all="ignore"):
    REAL: dict[str, Callable[..., np.ndarray]] = {
        "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint,
        "round": away_from_zero, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "rsqrt_rn": lambda x: 1 / np.sqrt(x),
        "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x), "expm1": np.expm1, "log": np.log, "log2": np.log2,
        "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh,
        "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
        "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "fmod": np.fmod, "hypot": np.hypot, "cbrt": np.cbrt,
        "rcbrt": lambda x: 1 / np.cbrt(x), "erf": scipy.special.erf, "erfc": scipy.special.erfc, "j0": scipy.special.j0,
        "j1": scipy.special.j1, "y0": scipy.special.y0, "y1": scipy.special.y1, "normcdf": scipy.special.ndtr,
        "jn": lambda n, x: scipy.special.jv(n, x), "yn": lambda n, x: scipy.special.yn(n, x),
        "tgamma": scipy.special.gamma, "lgamma": scipy.special.gammaln, "copysign": np.copysign, "nextafter": np.nextafter,
        "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), np.nan, 0.0)),
        "remainder": lambda x, y: np.array([remainder(a, b) for a, b in zip(x, y, strict=True)]),
        "ldexp": np.ldexp, "scalbn": np.ldexp, "saturatef": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
        "logb": lambda x: np.array([logb(v) for v in x]), "fma": lambda x, y, z: fused(x, y, z),
        "rhypot": lambda x, y: 1 / np.hypot(x, y), "norm3d": lambda *x: norm(*x), "norm4d": lambda *x: norm(*x),
        "rnorm3d": lambda *x: 1 / norm(*x), "rnorm4d": lambda *x: 1 / norm(*x),
        "sinpi": lambda x: np.array([circle(v, math.sin) for v in x]), "cospi": lambda x: np.array([circle(v, math.cos) for v in x]),
        "fast_dividef": np.divide, "fast_sinf": np.sin, "fast_cosf": np.cos, "fast_tanf": np.tan, "fast_log2f": np.log2,
        "fast_logf": np.log, "fast_expf": np.exp, "fast_exp10f": lambda x: np.power(10.0, x), "fast_log10f": np.log10,
        "fast_powf": np.power,
    }  # fmt: skip


def remainder(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y) or math.isinf(x) or y == 0:
        return math.nan
    return math.remainder(x, y)


def logb(x: float) -> float:
    if math.isnan(x) or math.isinf(x):
        return abs(x)
    return -math.inf if x == 0 else math.frexp(x)[1] - 1.0


def norm(*x: np.ndarray) -> np.ndarray:
    total = x[0]
    for value in x[1:]:
        total = np.hypot(total, value)
    return total


def circle(x: float, function: Callable[[float], float]) -> float:
    if not math.isfinite(x):
        return math.nan
    turn = Fraction(x) % 2
    exact = {  # where the function is exactly 0, 1 or -1
        math.sin: {Fraction(0): 0, Fraction(1): 0, Fraction(1, 2): 1, Fraction(3, 2): -1},
        math.cos: {Fraction(0): 1, Fraction(1): -1, Fraction(1, 2): 0, Fraction(3, 2): 0},
    }[function]
    if turn in exact:
        return float(exact[turn])
    near = round(2 * turn)  # quarters of a circle; what is left is small
    left = math.pi * float(turn - Fraction(near, 2))
    sine, cosine = math.sin(left), math.cos(left)
    k = (near + (function is math.cos)) % 4
    return (sine, cosine, -sine, -cosine)[k]


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    def one(a: float, b: float, c: float) -> float:
        if not all(map(math.isfinite, (a, b, c))):
            return float(np.float64(a) * np.float64(b) + np.float64(c))
        try:
            return float(Fraction(a) * Fraction(b) + Fraction(c))
        except OverflowError:
            return math.inf if (a > 0) == (b > 0) else -math.inf

    return np.array([one(float(a), float(b), float(c)) for a, b, c in zip(x, y, z, strict=True)])


# the tests

ALL = list(overloads())
ROUNDED = [o for o in ALL if o[0][-3:] in {"_rn", "_rz", "_rd", "_ru"} and o[0] not in REAL]
LOOSE = {
    "lgamma": 1e-13,
    "tgamma": 1e-13,
    "erfc": 4e-15,
    "normcdf": 4e-15,
    **dict.fromkeys(BESSEL, 1e-10),
}  # scipy's own errors


def test_every_function_is_tested_or_refused() -> None:
    names = {name for name, _, _ in ALL}
    assert len(names) > 150
    assert names == REFUSED | set(INTEGER) | set(REAL) | {name for name, _, _ in ROUNDED}


def test_every_function_that_is_computed_has_a_symbol() -> None:
    """The tables of the lowering have nothing that no function of the module calls."""
    symbols = set(re.findall(r'"__nv_(?:fast_)?(\w+)"', inspect.getsource(libdevice)))
    without_type = {symbol.removesuffix("f") for symbol in symbols}
    assert symbols | without_type >= set(lowering._COMPUTE)
    assert symbols | without_type >= {"rsqrt"} | set(vector_math.INTRINSIC) | set(
        vector_math.LIBM_UNARY | vector_math.LIBM_BINARY
    )


@pytest.mark.parametrize(("name", "kinds", "result"), [o for o in ALL if o[0] in REFUSED], ids=str)
def test_what_has_no_exact_code_is_refused(name: str, kinds: tuple[str, ...], result: str) -> None:
    with pytest.raises(
        triton_cpu.UnsupportedKernelError, match=r"tt\.extern_elementwise at .*: the function"
    ):
        run(name, kinds, result, [samples(name, kind, i) for i, kind in enumerate(kinds)])


@pytest.mark.parametrize(("name", "kinds", "result"), [o for o in ALL if o[0] in INTEGER], ids=str)
def test_integers_and_bits(name: str, kinds: tuple[str, ...], result: str) -> None:
    arguments = [samples(name, kind, i) for i, kind in enumerate(kinds)]
    n = min(map(len, arguments))
    expected = wrapped(INTEGER[name](*(argument[:n] for argument in arguments)), NUMPY[result])
    got = run(name, kinds, result, arguments)
    assert np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"), [
        (*v,) for v in zip(*(a[:n] for a in arguments), got, expected, strict=True) if v[-1] != v[-2]
    ]


@pytest.mark.parametrize(("name", "kinds", "result"), [o for o in ALL if o[0] in REAL], ids=str)
def test_real_functions(name: str, kinds: tuple[str, ...], result: str) -> None:
    arguments = [samples(name, kind, i) for i, kind in enumerate(kinds)]
    n = min(map(len, arguments))
    wide = [a[:n].astype(np.float64) if a.dtype.kind == "f" else a[:n] for a in arguments]
    with np.errstate(all="ignore"):
        expected = REAL[name](*(wide if name != "nextafter" else [a[:n] for a in arguments]))
        rounded = expected.astype(NUMPY[result])
    got = run(name, kinds, result, arguments)
    if result.startswith("int"):
        assert np.array_equal(got, rounded)
        return
    info = np.finfo(NUMPY[result])
    ordinary = np.isfinite(rounded)
    near = np.abs(rounded) >= info.max / 2  # where one more bit is an overflow
    assert np.array_equal(got[~ordinary & ~near], rounded[~ordinary & ~near], equal_nan=True)
    tolerance = max(4 * info.eps, LOOSE.get(name, 0))
    np.testing.assert_allclose(
        got[ordinary].astype(np.float64),
        expected[ordinary],
        rtol=tolerance,
        atol=max(4 * info.tiny * info.eps, LOOSE.get(name, 0)),
    )


def in_direction(value: Fraction, mode: str, dtype: type) -> float:
    """The number of a type that an exact value rounds to."""
    if mode == "rz":
        mode = "rd" if value > 0 else "ru"
    largest, sign = Fraction(float(np.finfo(dtype).max)), 1 if value > 0 else -1
    if abs(value) > largest:
        inward = (
            abs(value) < largest * (1 + Fraction(1, 2**25)) if mode == "rn" else (value > 0) == (mode == "rd")
        )
        return sign * (float(largest) if inward else math.inf)
    near = dtype(float(value)) if dtype is np.float64 else nearest_float32(value)
    if mode == "rd" and Fraction(float(near)) > value:
        near = np.nextafter(near, dtype(-math.inf))
    if mode == "ru" and Fraction(float(near)) < value:
        near = np.nextafter(near, dtype(math.inf))
    return float(near)


def nearest_float32(value: Fraction) -> np.float32:
    """Rounding to float64 first may go wrong by half a unit: the neighbours are looked at."""
    near = np.float32(float(value))
    with np.errstate(over="ignore"):
        around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    finite = [v for v in around if np.isfinite(v)]
    return min(finite, key=lambda v: (abs(Fraction(float(v)) - value), int(v.view(np.int32)) & 1))


def exact(operation: str, x: list[float]) -> Fraction | None:
    """The exact value, or None where it is not a rational number."""
    if not all(map(math.isfinite, x)):
        return None
    a, *rest = map(Fraction, x)
    if operation in {"div", "rcp"}:
        a, b = (Fraction(1), a) if operation == "rcp" else (a, rest[0])
        return a / b if b else None
    return {
        "add": lambda: a + rest[0], "sub": lambda: a - rest[0], "mul": lambda: a * rest[0], "fma": lambda: a * rest[0] + rest[1],
    }[operation]()  # fmt: skip


@pytest.mark.parametrize(("name", "kinds", "result"), [o for o in ROUNDED if "2" not in o[0]], ids=str)
def test_arithmetic_that_rounds_in_a_direction(name: str, kinds: tuple[str, ...], result: str) -> None:
    operation, mode = name.split("_")
    arguments = [samples(name, kind, i) for i, kind in enumerate(kinds)]
    if result == "fp64" and mode != "rn":
        with pytest.raises(triton_cpu.UnsupportedKernelError, match="in float64 only rounding to nearest"):
            run(name, kinds, result, arguments)
        return
    got, dtype = run(name, kinds, result, arguments), NUMPY[result]
    for value, *x in zip(got.tolist(), *(a.tolist() for a in arguments), strict=True):
        if operation == "sqrt":
            expected = root_in_direction(x[0], mode, dtype)
        else:
            true = exact(operation, x)
            expected = in_direction(true, mode, dtype) if true is not None else plain(operation, x)
        assert value == expected or (math.isnan(value) and math.isnan(expected)), (x, value, expected)


def root_in_direction(x: float, mode: str, dtype: type) -> float:
    if math.isnan(x) or x < 0:
        return math.nan
    if x == 0 or math.isinf(x):
        return x
    near = dtype(np.sqrt(np.float64(x)))
    square = Fraction(float(near)) ** 2
    if mode in {"rd", "rz"} and square > Fraction(x):
        near = np.nextafter(near, dtype(0))
    if mode == "ru" and square < Fraction(x):
        near = np.nextafter(near, dtype(math.inf))
    return float(near)


def plain(operation: str, x: list[float]) -> float:
    with np.errstate(all="ignore"):
        a = [np.float64(v) for v in x]
        if operation == "fma":
            return float(a[0] * a[1] + a[2])
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
        return float(1 / a[0]) if operation == "rcp" else float(function[operation](*a))


@pytest.mark.parametrize(("name", "kinds", "result"), [o for o in ROUNDED if "2" in o[0]], ids=str)
def test_casts_that_round_in_a_direction(name: str, kinds: tuple[str, ...], result: str) -> None:
    mode, target = name[-2:], name.split("2")[1][:-3]
    argument = samples(name, kinds[0], 0)
    if name.startswith(("uint", "ull")):
        argument = argument.view(f"u{argument.itemsize}").astype(NUMPY[kinds[0]])
    got = run(name, kinds, result, [argument])
    unsigned = name.startswith(("uint", "ull"))
    for value, x in zip(got.tolist(), argument.tolist(), strict=True):
        if result.startswith("fp"):
            true = x % 2 ** (8 * argument.itemsize) if unsigned else x
            expected = in_direction(Fraction(true), mode, NUMPY[result]) if math.isfinite(x) else x
            assert value == expected or math.isnan(x), (x, value, expected)
        else:
            round_it = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode]
            whole = round_it(np.array([x], argument.dtype))
            (expected,) = saturated(
                whole, {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[target]
            )
            assert value % 2**64 == expected % 2**64 or value % 2**32 == expected, (x, value, expected)


def test_a_sum_that_cancels_is_negative_zero_when_it_rounds_down() -> None:
    ones = np.ones(4, np.float32)
    down = run("add_rd", ("fp32", "fp32"), "fp32", [ones, -ones])
    up = run("add_ru", ("fp32", "fp32"), "fp32", [ones, -ones])
    assert np.signbit(down).all()
    assert not np.signbit(up).any()
    assert not np.signbit(run("add_rd", ("fp32", "fp32"), "fp32", [0 * ones, 0 * ones])).any()
