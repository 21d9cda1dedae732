"""The polynomials, over the whole of float32 and where kernels use them, against float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
import scipy.special

from flroute.reference_vendor.triton_cpu import vector_math
from flroute.reference_vendor.triton_cpu.object_code import machine

EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "tanh": np.tanh, "erf": scipy.special.erf,
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    rng = np.random.default_rng(0)
    every = rng.integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, 88.72284, -103.97, 127.99999, -149], np.float32
    )
    usual = rng.normal(size=100_000).astype(np.float32)
    return np.concatenate(
        [every, usual, usual * 3, np.linspace(-160, 140, 100_000, dtype=np.float32), special]
    )


@pytest.mark.parametrize("name", EXACT)
def test_within_an_ulp_and_a_half(name: str, inputs: np.ndarray) -> None:
    call = f"call float @vector_{name}(float %x)"
    text = vector_math.prelude(call) + (
        "define void @run(ptr noalias %a, ptr noalias %o, i64 %n) {\nentry:\n  br label %h\nh:\n  %i = phi i64 [0, %entry], [%j, %h]\n"
        "  %p = getelementptr float, ptr %a, i64 %i\n  %q = getelementptr float, ptr %o, i64 %i\n  %x = load float, ptr %p\n"
        f"  %y = {call}\n  store float %y, ptr %q\n  %j = add i64 %i, 1\n  %c = icmp slt i64 %j, %n\n  br i1 %c, label %h, label %e\ne:\n  ret void\n}}\n"
    )
    module, target = llvm.parse_assembly(text), machine()
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    out = np.empty_like(inputs)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("run")
    )
    run(inputs.ctypes.data, out.ctypes.data, inputs.size)
    with np.errstate(all="ignore"):
        exact = EXACT[name](inputs.astype(np.float64))
        rounded = exact.astype(np.float32)
        ulp = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        finite = np.isfinite(rounded)
        error = np.where(finite, np.abs(out - exact) / ulp, 0)
    assert np.array_equal(out[~finite], rounded[~finite], equal_nan=True)
    assert error.max() < 1.5, inputs[error.argmax()]
    assert np.array_equal(np.signbit(out[exact == 0]), np.signbit(rounded[exact == 0]))
