"""The polynomials, over the whole of their type and where kernels use them, against more digits than they have."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
import scipy.special

from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.object_code import machine

Array = np.ndarray
EXACT: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh, "erf": scipy.special.erf, "pow": np.power,
}  # fmt: skip
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 3, 0.5, -0.5]


def evaluate(name: str, kind: str, *inputs: Array) -> Array:
    """What the function gives for arrays of numbers of this kind, in a loop that LLVM vectorises."""
    arguments = "xy"[: len(inputs)]
    given = ", ".join(f"{kind} %{a}" for a in arguments)
    call = f"call {kind} @{vector_math.VECTOR[kind][name]}({given})"
    loads = "".join(
        f"  %p{a} = getelementptr {kind}, ptr %in{a}, i64 %i\n  %{a} = load {kind}, ptr %p{a}\n"
        for a in arguments
    )
    parameters = ", ".join([*(f"ptr noalias %in{a}" for a in arguments), "ptr noalias %o", "i64 %n"])
    text = vector_math.prelude(call) + (
        f"define void @run({parameters}) {{\nentry:\n  br label %h\nh:\n  %i = phi i64 [0, %entry], [%j, %h]\n{loads}"
        f"  %q = getelementptr {kind}, ptr %o, i64 %i\n  %r = {call}\n  store {kind} %r, ptr %q\n"
        "  %j = add i64 %i, 1\n  %c = icmp slt i64 %j, %n\n  br i1 %c, label %h, label %e\ne:\n  ret void\n}\n"
    )
    target = machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    out = np.empty_like(inputs[0])
    types = [ctypes.c_void_p] * (len(inputs) + 1) + [ctypes.c_int64]
    run = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address("run"))
    run(*(a.ctypes.data for a in inputs), out.ctypes.data, out.size)
    return out


@pytest.fixture(scope="module")
def inputs() -> Array:
    rng = np.random.default_rng(0)
    every = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([*SPECIAL, 1e-45, 88.72284, -103.97, 127.99999, -149], np.float32)
    usual = rng.normal(size=100_000).astype(np.float32)
    return np.concatenate(
        [every, usual, usual * 3, np.linspace(-160, 140, 100_000, dtype=np.float32), special]
    )


def assert_near(out: Array, exact: Array, ulps: float, least: float) -> None:
    """``out`` is within some ulps of ``exact``, which has more digits; infinities, NaN and the signs of zeros are the same."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(out.dtype)
        ulp = np.maximum(np.spacing(np.abs(rounded)).astype(exact.dtype), least)
        finite = np.isfinite(rounded)
        error = np.where(finite, np.abs(out - exact) / ulp, 0)
    assert np.array_equal(out[~finite], rounded[~finite], equal_nan=True)
    assert error.max() < ulps, (error.argmax(), error.max())
    assert np.array_equal(np.signbit(out[exact == 0]), np.signbit(rounded[exact == 0]))


@pytest.mark.parametrize("name", sorted(set(EXACT) - {"pow"}))
def test_float32_is_within_an_ulp_and_a_half(name: str, inputs: Array) -> None:
    with np.errstate(all="ignore"):
        exact = EXACT[name](inputs.astype(np.float64))
    assert_near(evaluate(name, "float", inputs), exact, 1.5, 2.0**-149)


def test_a_power_of_float32_is_within_an_ulp(inputs: Array) -> None:
    rng = np.random.default_rng(1)
    special = np.array([*SPECIAL, 1e-45, 7, -7, 1e10, -1e10], np.float32)
    x = np.concatenate([inputs, np.abs(inputs), np.repeat(special, special.size)])
    y = np.concatenate(
        [rng.normal(size=inputs.size) * 4, rng.integers(-5, 6, inputs.size), np.tile(special, special.size)]
    )
    y = y.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert_near(evaluate("pow", "float", x, y), exact, 1.0, 2.0**-149)


PRECISE = {"exp": mpmath.exp, "exp2": lambda x: mpmath.power(2, x), "log": mpmath.log, "tanh": mpmath.tanh,
           "erf": mpmath.erf, "erfc": mpmath.erfc}  # fmt: skip


def precisely(function: Callable[[object], object], x: Array) -> Array:
    """Each value to 40 digits, as the nearest long double."""
    with mpmath.workdps(40):
        values = [mpmath.mpf(function(mpmath.mpf(float(v)))) for v in x]  # type: ignore[arg-type]
        return np.array(
            [
                np.longdouble(mpmath.nstr(v, 25)) if v < mpmath.mpf("1e4000") else np.longdouble(np.inf)
                for v in values
            ]
        )


def samples(name: str) -> Array:
    rng = np.random.default_rng(2)
    spread = 10.0 ** rng.uniform(-18, 2.8, 1500) * rng.choice([-1, 1], 1500)
    usual = [rng.normal(size=1500), rng.normal(size=500) * 10, np.linspace(-30, 30, 1001)]
    x = np.concatenate([spread, *usual, rng.uniform(-760, 715, 500)])
    return np.abs(np.concatenate([x, 10.0 ** rng.uniform(-308, 308, 1500)])) + 5e-324 if name == "log" else x


@pytest.mark.parametrize("name", PRECISE)
def test_float64_is_near_the_exact_value(name: str) -> None:
    x = samples(name)
    ulps = {"tanh": 1.5, "erf": 2.0, "erfc": 6.0}.get(name, 1.0)
    assert_near(evaluate(name, "double", x), precisely(PRECISE[name], x), ulps, 5e-324)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("exp", np.exp),
        ("exp2", np.exp2),
        ("log", np.log),
        ("tanh", np.tanh),
        ("erf", scipy.special.erf),
        ("erfc", scipy.special.erfc),
    ],
)
def test_float64_has_the_special_values(name: str, function: Callable[[Array], Array]) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, -5e-324, 2e-308])
    with np.errstate(all="ignore"):
        expected = function(x)
    out = evaluate(name, "double", x)
    np.testing.assert_allclose(out, expected, rtol=1e-15, atol=0)
    assert np.array_equal(np.signbit(out[expected == 0]), np.signbit(expected[expected == 0]))
