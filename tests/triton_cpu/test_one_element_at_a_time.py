"""One element at a time: arithmetic, comparisons, casts and functions, against numpy and PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int32, torch.int64)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), float("nan"), 3.0, -2.5, 1e-30, 65504.0]


@triton.jit
def binary(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(x + i, mask=mask)
    b = tl.load(y + i, mask=mask)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "min":
        r = tl.minimum(a, b)
    elif OP == "nanmax":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "where":
        r = tl.where(a < b, a, b)
    elif OP == "shl":
        r = a << b
    elif OP == "shr":
        r = a >> b
    elif OP == "clamp":
        r = tl.clamp(a, -1.0, 2.0) + b * 0
    tl.store(out + i, r, mask=mask)


@triton.jit
def compare(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + i, mask=i < n)
    if OP == "eq":
        r = a == b
    elif OP == "ne":
        r = a != b
    elif OP == "lt":
        r = a < b
    elif OP == "le":
        r = a <= b
    elif OP == "gt":
        r = a > b
    elif OP == "ge":
        r = a >= b
    tl.store(out + i, r, mask=i < n)


@triton.jit
def unary(x, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if OP == "exp":
        r = tl.exp(v)
    elif OP == "exp2":
        r = tl.exp2(v)
    elif OP == "log":
        r = tl.log(v)
    elif OP == "log2":
        r = tl.log2(v)
    elif OP == "sin":
        r = tl.sin(v)
    elif OP == "cos":
        r = tl.cos(v)
    elif OP == "sqrt":
        r = tl.sqrt(v)
    elif OP == "rsqrt":
        r = tl.rsqrt(v)
    elif OP == "erf":
        r = tl.erf(v)
    elif OP == "floor":
        r = tl.floor(v)
    elif OP == "ceil":
        r = tl.ceil(v)
    elif OP == "abs":
        r = tl.abs(v)
    elif OP == "neg":
        r = -v
    elif OP == "sigmoid":
        r = tl.sigmoid(v)
    elif OP == "tanh":
        r = libdevice.tanh(v)
    elif OP == "log1p":
        r = libdevice.log1p(v)
    elif OP == "expm1":
        r = libdevice.expm1(v)
    elif OP == "tan":
        r = libdevice.tan(v)
    elif OP == "atan":
        r = libdevice.atan(v)
    elif OP == "erfc":
        r = libdevice.erfc(v)
    elif OP == "lgamma":
        r = libdevice.lgamma(v)
    elif OP == "trunc":
        r = libdevice.trunc(v)
    tl.store(out + i, r, mask=i < n)


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def reinterpret(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty, bitcast=True), mask=i < n)


@triton.jit
def predicates(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, libdevice.isnan(v).to(tl.int32) + 2 * libdevice.isinf(v).to(tl.int32), mask=i < n)


@triton.jit
def power(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.pow(tl.load(x + i, mask=i < n), tl.load(y + i, mask=i < n)), mask=i < n)


@triton.jit
def random_numbers(out, seed, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.randint(seed, i))


def samples(dtype: torch.dtype, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(n, generator=generator, dtype=torch.float64) * 3
        values[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64).roll(seed)[:n]
        return values.to(dtype)
    info = torch.iinfo(dtype)
    values = torch.randint(-50, 50, (n,), generator=generator, dtype=torch.int64)
    values[:4] = torch.tensor([info.min, info.max, 0, -1]).roll(seed)
    return values.to(dtype)


def run(kernel: object, *arguments: object, n: int, block: int = 64, **constants: object) -> None:
    kernel[(triton.cdiv(n, block),)](*arguments, n, BLOCK=block, **constants)


BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.fmax, "min": torch.fmin, "nanmax": torch.maximum,
    "where": lambda a, b: torch.where(a < b, a, b),
    "clamp": lambda a, b: torch.fmin(torch.fmax(a, a.new_tensor(-1.0)), a.new_tensor(2.0)) + b * 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in BINARY for dtype in FLOATS if op != "div" or dtype in FLOATS[:2]],
    ids=str,
)
def test_float_arithmetic_is_that_of_the_host(op: str, dtype: torch.dtype) -> None:
    n = 150
    x, y, out = samples(dtype, n), samples(dtype, n, 1), torch.zeros(n, dtype=dtype)
    run(binary, x, y, out, n=n, OP=op)
    torch.testing.assert_close(out, BINARY[op](x, y), rtol=0, atol=0, equal_nan=True)


INTEGER = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", INTEGER)
def test_integer_arithmetic_wraps(op: str, dtype: torch.dtype) -> None:
    n = 70
    x, y, out = samples(dtype, n), samples(dtype, n, 1), torch.zeros(n, dtype=dtype)
    run(binary, x, y, out, n=n, OP=op)
    assert torch.equal(out, INTEGER[op](x, y))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_division_truncates_and_never_traps(op: str, dtype: torch.dtype) -> None:
    n = 70
    x, y, out = samples(dtype, n), samples(dtype, n, 1), torch.zeros(n, dtype=dtype)
    y[10], y[11] = 0, -1
    x[11] = torch.iinfo(dtype).min
    run(binary, x, y, out, n=n, OP=op)
    defined = (y != 0) & ~((y == -1) & (x == torch.iinfo(dtype).min))
    a, b = x[defined], y[defined]
    expected = torch.div(a, b, rounding_mode="trunc") if op == "floordiv" else torch.fmod(a, b)
    assert torch.equal(out[defined], expected)


def test_shifts_by_the_width_or_more_leave_nothing_but_the_sign() -> None:
    x = torch.tensor([1, -1, -8, 7, 5, -5], dtype=torch.int32)
    y = torch.tensor([31, 31, 1, 32, 40, 33], dtype=torch.int32)
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    run(binary, x, y, left, n=6, block=8, OP="shl")
    run(binary, x, y, right, n=6, block=8, OP="shr")
    assert left.tolist() == [-(2**31), -(2**31), -16, 0, 0, 0]
    assert right.tolist() == [0, -1, -4, 0, 0, -1]


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8], ids=str)
def test_comparisons_store_bools(op: str, dtype: torch.dtype) -> None:
    n = 70
    x, y = (samples(dtype if dtype != torch.uint8 else torch.int16, n, seed).to(dtype) for seed in (0, 1))
    y[20:30] = x[20:30]
    out = torch.zeros(n, dtype=torch.bool)
    run(compare, x, y, out, n=n, OP=op)
    assert torch.equal(out, getattr(torch, op)(x, y))


UNARY = {
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "sin": torch.sin, "cos": torch.cos, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil, "abs": torch.abs, "neg": torch.neg,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "log1p": torch.log1p, "expm1": torch.expm1, "tan": torch.tan, "atan": torch.atan,
    "erfc": torch.erfc, "lgamma": torch.lgamma, "trunc": torch.trunc,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_functions_are_as_accurate_as_the_host(op: str, dtype: torch.dtype) -> None:
    n = 1000
    x, out = samples(dtype, n), torch.zeros(n, dtype=dtype)
    run(unary, x, out, n=n, OP=op, block=128)
    expected = UNARY[op](x.double())
    torch.testing.assert_close(
        out.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=2e-38, equal_nan=True
    )


@pytest.mark.parametrize("op", ["exp", "abs"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_functions_round_once(op: str, dtype: torch.dtype) -> None:
    n = 300
    x = samples(dtype, n)
    if op == "exp":  # Triton's exp takes float32: the cast is part of the kernel
        wide, out = x.float(), torch.zeros(n, dtype=dtype)
        run(unary, wide, out, n=n, OP=op)
    else:
        out = torch.zeros(n, dtype=dtype)
        run(unary, x, out, n=n, OP=op)
    torch.testing.assert_close(out, UNARY[op](x.float()).to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", [*FLOATS, torch.int8, torch.int32], ids=str)
@pytest.mark.parametrize("source", [*FLOATS, torch.int8, torch.int64, torch.bool], ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    n = 70
    x = torch.arange(n) % 3 == 0 if source == torch.bool else samples(source, n)
    if source.is_floating_point and not target.is_floating_point:
        x = x.nan_to_num(1, 100, -100).clamp(-100, 100)
    out = torch.zeros(n, dtype=target)
    run(cast, x, out, n=n)
    torch.testing.assert_close(out, x.to(target), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("source", "target"),
    [(torch.float32, torch.int32), (torch.int32, torch.float32), (torch.float16, torch.int16), (torch.int16, torch.bfloat16),
     (torch.bfloat16, torch.int16), (torch.float64, torch.int64), (torch.int16, torch.float16)],
    ids=str,
)  # fmt: skip
def test_bitcasts(source: torch.dtype, target: torch.dtype) -> None:
    x = samples(source, 60)
    x = x.nan_to_num(7) if source.is_floating_point else x.clamp(-50, 50)
    out = torch.zeros(60, dtype=target)
    run(reinterpret, x, out, n=60)
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


def test_predicates_of_floats() -> None:
    x = torch.tensor(SPECIAL)
    out = torch.zeros(len(SPECIAL), dtype=torch.int32)
    run(predicates, x, out, n=len(SPECIAL), block=16)
    assert torch.equal(out, x.isnan().int() + 2 * x.isinf().int())


def test_power() -> None:
    x, y, out = samples(torch.float32, 60), samples(torch.float32, 60, 1), torch.zeros(60)
    run(power, x, y, out, n=60)
    torch.testing.assert_close(out, torch.pow(x, y), equal_nan=True)


def test_random_numbers_are_philox() -> None:
    out = torch.zeros(64, dtype=torch.int32)
    random_numbers[(1,)](out, 1234, BLOCK=64)
    assert np.array_equal(out.numpy().view(np.uint32), [philox(1234, i) for i in range(64)])


def philox(seed: int, offset: int) -> int:
    """Philox 4x32-10 (Salmon et al., 2011), first word, with Triton's use of seed and offset."""
    counter, key, mask = [offset, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter[0]
