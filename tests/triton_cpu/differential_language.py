"""The rest of Triton's language, as kernels that are run twice: functions, conversions, pointers, helpers, arguments."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from differential_kernels import BLOCK, FLOATS, Case, N, samples
from triton.tools.tensor_descriptor import TensorDescriptor

GRID = (triton.cdiv(N, BLOCK),)


@triton.jit
def functions(x, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1)
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
    elif OP == "erf":
        r = tl.erf(v)
    elif OP == "sqrt":
        r = tl.sqrt(v)
    elif OP == "rsqrt":
        r = tl.rsqrt(v)
    elif OP == "floor":
        r = tl.floor(v)
    elif OP == "ceil":
        r = tl.ceil(v)
    elif OP == "sigmoid":
        r = tl.sigmoid(v)
    tl.store(out + i, r, mask=i < n)


@triton.jit
def clamp(x, out, n, low, high, ALL: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    least, most = tl.full((BLOCK,), low, v.dtype), tl.full((BLOCK,), high, v.dtype)
    if ALL:
        tl.store(out + i, tl.clamp(v, least, most, propagate_nan=tl.PropagateNan.ALL), mask=i < n)
    else:
        tl.store(out + i, tl.clamp(v, least, most), mask=i < n)


@triton.jit
def concatenate(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i, mask=i < n), tl.load(x + BLOCK + i, mask=BLOCK + i < n)
    tl.store(
        out + tl.arange(0, 2 * BLOCK), tl.cat(a, b, can_reorder=True)
    )  # without, it is joined and reshaped


@triton.jit
def addresses(x, out, n, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last = (x + n - 1).to(tl.int64)
    place = (last - i.to(tl.int64) * size).to(tl.pointer_type(x.dtype.element_ty))
    tl.store(out + i, tl.load(place, mask=i < n), mask=i < n)


@triton.jit
def one_element(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(x + tl.arange(0, 1)).item()
    tl.store(out + i, tl.load(x + i, mask=i < n) * first, mask=i < n)


@triton.jit
def hints(x, out, n, BLOCK: tl.constexpr):
    tl.assume(n > 0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.debug_barrier()
    tl.device_assert(i >= 0, "an index")
    tl.device_print("seen", tl.max(i, 0))
    tl.store(out + i, v + v, mask=i < n)


@triton.jit
def smaller_of(a, b):
    if a < b:
        return a
    return b + 1


@triton.jit(noinline=True)
def called(k, n):
    total = k * 0
    for j in range(n):
        total += j * k
    return total


@triton.jit
def helpers(x, out, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    by = smaller_of(p, 2) + called(p, 4)
    tl.store(out + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


@triton.jit
def of_a_tuple(pair, n, factors, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(pair[0] + i, mask=i < n)
    tl.store(pair[1] + i, v * factors[0] + factors[1][0] - factors[1][1], mask=i < n)


@triton.jit
def through_descriptor(x, out, R: tl.constexpr, C: tl.constexpr):
    v = x.load([tl.program_id(0) * R, 0])
    tl.store(out + tl.program_id(0) * R * C + tl.arange(0, R * C), tl.reshape(v, (R * C,)))


@triton.jit
def random(out, n, seed, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if OP == "rand":
        tl.store(out + i, tl.rand(seed, i), mask=i < n)
    else:
        tl.store(out + i, tl.randn(seed, i), mask=i < n)


@triton.jit
def product(x, y, out, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    a, b = tl.load(x + r[:, None] * C + c[None, :]), tl.load(y + c[:, None] * R + r[None, :])
    tl.store(out + r[:, None] * R + r[None, :], tl.dot(a, b))


def _functions(op: str, dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    functions[GRID](samples(dtype, (N,), 8), out, N, OP=op, BLOCK=BLOCK)
    return out


def _clamp(dtype: torch.dtype, nan: bool) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    clamp[GRID](samples(dtype, (N,), 2), out, N, -1.5, 2.0, ALL=nan, BLOCK=BLOCK)
    return out


def _plain(kernel: str, dtype: torch.dtype, grid: int = GRID[0]) -> torch.Tensor:
    """A kernel that takes a tensor, a result and their size; a grid of none writes nothing."""
    out = torch.full((N,), 7, dtype=dtype)
    globals()[kernel][(grid,)](samples(dtype, (N,), 9).nan_to_num(1, 2, 3), out, N, BLOCK=BLOCK)
    return out


def _addresses(dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    addresses[GRID](samples(dtype, (N,), 10), out, N, dtype.itemsize, BLOCK=BLOCK)
    return out


def _checked(dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    hints[GRID](samples(dtype, (N,), 11), out, N, BLOCK=BLOCK, debug=True)
    return out


def _of_a_tuple(dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    of_a_tuple[GRID]((samples(dtype, (N,), 12), out), N, (3, (5, 1)), BLOCK=BLOCK)
    return out


def _through_descriptor(dtype: torch.dtype) -> torch.Tensor:
    out, x = torch.zeros(2 * 8 * 32, dtype=dtype), samples(dtype, (13, 32), 13)[:, :24]
    through_descriptor[(2,)](TensorDescriptor.from_tensor(x, [8, 32]), out, R=8, C=32)
    return out


def _random(op: str) -> torch.Tensor:
    out = torch.zeros(N)
    random[GRID](out, N, 1234, OP=op, BLOCK=BLOCK)
    return out


def _product(dtype: torch.dtype, result: torch.dtype) -> torch.Tensor:
    x, y = samples(dtype, (16, 32), 14).nan_to_num(1, 2, 3), samples(dtype, (32, 16), 15).nan_to_num(1, 2, 3)
    out = torch.zeros(16 * 16, dtype=result)
    product[(1,)](x, y, out, R=16, C=32)
    return out


FUNCTIONS = ("exp", "exp2", "log", "log2", "sin", "cos", "erf", "sqrt", "rsqrt", "floor", "ceil", "sigmoid")


def cases() -> Iterator[Case]:
    """What is run: a function that launches a kernel, and its arguments."""
    for dtype in (torch.float32, torch.float64):
        for op in FUNCTIONS:
            yield _functions, (op, dtype)
    for dtype in FLOATS:
        for nan in (False, True):
            yield _clamp, (dtype, nan)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        yield _plain, ("concatenate", dtype)
        yield _plain, ("one_element", dtype)
        yield _plain, ("helpers", dtype)
        yield _plain, ("one_element", dtype, 0)
        yield _addresses, (dtype,)
        yield _checked, (dtype,)
        yield _of_a_tuple, (dtype,)
    for dtype in (torch.float32, torch.float16, torch.int32):
        yield _through_descriptor, (dtype,)
    for op in ("rand", "randn"):
        yield _random, (op,)
    for dtype, result in (
        (torch.int8, torch.int32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ):
        yield _product, (dtype, result)
