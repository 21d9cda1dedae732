"""Arithmetic, blocks, memory and control flow, as kernels that are run twice: compiled, and by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

FLOATS = (torch.float32, torch.float16, torch.float64)
INTEGERS = (torch.int32, torch.int64, torch.int16, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS)
N, BLOCK = 200, 64  # the last block is not full


@triton.jit
def unary(x, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1)
    if OP == "negative":
        r = -v
    elif OP == "invert":
        r = ~v
    elif OP == "abs":
        r = tl.abs(v)
    elif OP == "not":
        r = (v == 0).to(v.dtype)
    elif OP == "square":
        r = v * v
    elif OP == "floor":
        r = tl.floor(v.to(tl.float32))
    elif OP == "ceil":
        r = tl.ceil(v.to(tl.float32))
    elif OP == "sqrt_rn":
        r = tl.sqrt_rn(tl.abs(v.to(tl.float32)))
    elif OP == "to_unsigned":
        r = tl.abs(v).to(tl.uint32).to(tl.float32)
    elif OP == "bits":
        r = v.to(tl.float32).to(tl.int32, bitcast=True) >> 3
    tl.store(out + i, r, mask=i < n)


@triton.jit
def binary(x, y, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0915
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1)
    b = tl.load(y + i, mask=i < n, other=1)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "truediv":
        r = a / b
    elif OP == "div_rn":
        r = tl.div_rn(a.to(tl.float32), b.to(tl.float32))
    elif OP == "fdiv":
        r = tl.fdiv(a.to(tl.float32), b.to(tl.float32))
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "min":
        r = tl.minimum(a, b)
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "nan_min":
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "nan_max":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "and":
        r = a & b
    elif OP == "or":
        r = a | b
    elif OP == "xor":
        r = a ^ b
    elif OP == "shl":
        r = a << (b & 7)
    elif OP == "shr":
        r = a >> (b & 7)
    elif OP == "less":
        r = (a < b).to(a.dtype)
    elif OP == "at_least":
        r = (a >= b).to(a.dtype)
    elif OP == "unequal":
        r = (a != b).to(a.dtype)
    elif OP == "where":
        r = tl.where(a > b, a, b + 1)
    elif OP == "umulhi":
        r = tl.umulhi(a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True)
    elif OP == "cdiv":
        r = tl.cdiv(a, b)
    tl.store(out + i, r, mask=i < n)


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def larger_of_pairs(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def blocks(x, y, out, rows, columns, stride, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    v = tl.load(x + r[:, None] * stride + c[None, :], mask=mask, other=1)
    w = tl.load(y + r[:, None] * stride + c[None, :], mask=mask, other=2)
    flat = tl.arange(0, R * C)
    if OP == "sum_rows":
        tl.store(out + r, tl.sum(v, 1))
    elif OP == "sum_columns":
        tl.store(out + c, tl.sum(v, 0))
    elif OP == "max_columns":
        tl.store(out + c, tl.max(v, 0))
    elif OP == "argmin_rows":
        tl.store(out + r, tl.argmin(v, 1).to(v.dtype))
    elif OP == "xor":
        tl.store(out + r, tl.xor_sum(v, 1))
    elif OP == "own_sum":
        tl.store(out + r, tl.reduce(v, 1, plus))
    elif OP == "pairs":
        most, where = tl.reduce((v, tl.broadcast_to(c[None, :], (R, C)).to(v.dtype)), 1, larger_of_pairs)
        tl.store(out + r, most + where)
    elif OP == "cumsum":
        tl.store(out + flat, tl.reshape(tl.cumsum(v, 1), (R * C,)))
    elif OP == "cumsum_back":
        tl.store(out + flat, tl.reshape(tl.cumsum(v, 0, reverse=True), (R * C,)))
    elif OP == "scan":
        tl.store(out + flat, tl.reshape(tl.associative_scan(v, 1, plus), (R * C,)))
    elif OP == "trans":
        tl.store(out + flat, tl.reshape(tl.trans(v), (R * C,)))
    elif OP == "permute":
        tl.store(out + flat, tl.reshape(tl.permute(tl.reshape(v, (R, C // 2, 2)), (2, 0, 1)), (R * C,)))
    elif OP == "join":
        tl.store(out + tl.arange(0, 2 * R * C), tl.reshape(tl.join(v, w), (2 * R * C,)))
    elif OP == "interleave":
        tl.store(out + tl.arange(0, 2 * R * C), tl.reshape(tl.interleave(v, w), (2 * R * C,)))
    elif OP == "split":
        a, b = tl.split(tl.reshape(v, (R, C // 2, 2)))
        tl.store(out + tl.arange(0, R * C // 2), tl.reshape(a - b, (R * C // 2,)))
    elif OP == "sort":
        tl.store(out + flat, tl.reshape(tl.sort(v, 1), (R * C,)))
    elif OP == "flip":
        tl.store(out + flat, tl.reshape(tl.flip(v, 1), (R * C,)))
    elif OP == "gather":
        index = tl.broadcast_to((c[None, :] * 3 + r[:, None]) % C, (R, C))
        tl.store(out + flat, tl.reshape(tl.gather(v, index, 1), (R * C,)))
    elif OP == "ravel":
        tl.store(out + flat, tl.ravel(v) + flat.to(v.dtype))
    elif OP == "dot":
        tl.store(out + r[:, None] * R + r[None, :], tl.dot(v.to(tl.float32), tl.trans(w.to(tl.float32))))


@triton.jit
def memory(x, counts, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    place = counts + i % 8
    if OP == "add":
        tl.store(out + i, tl.atomic_add(place, v, mask=i < n), mask=i < n)
    elif OP == "max":
        tl.store(out + i, tl.atomic_max(place, v, mask=i < n), mask=i < n)
    elif OP == "min":
        tl.store(out + i, tl.atomic_min(place, v, mask=i < n), mask=i < n)
    elif OP == "and":
        tl.store(out + i, tl.atomic_and(place, v, mask=i < n), mask=i < n)
    elif OP == "or":
        tl.store(out + i, tl.atomic_or(place, v, mask=i < n), mask=i < n)
    elif OP == "xor":
        tl.store(out + i, tl.atomic_xor(place, v, mask=i < n), mask=i < n)
    elif OP == "exchange":
        tl.store(out + i, tl.atomic_xchg(place, v, mask=i < n), mask=i < n)
    elif OP == "swap":
        tl.store(out + i, tl.atomic_cas(place, v * 0, v), mask=i < n)
    elif OP == "histogram":
        tl.atomic_add(counts + tl.arange(0, 8), tl.histogram(v & 7, 8).to(v.dtype))
    elif OP == "random":
        tl.store(out + i, tl.randint(v, i), mask=i < n)


@triton.jit
def control(x, out, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    if p * BLOCK >= n:
        return
    i = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    if OP == "for":
        total = v * 0
        for k in range(p, 7, 2):
            total += v * k
        v = total
    elif OP == "while":
        k = p
        while k < 5:
            v = v + tl.max(v, 0)
            k += 1
    elif OP == "if":
        if p % 2 == 0:  # noqa: SIM108
            v = v + 1
        else:
            v = v - tl.num_programs(0)
    elif OP == "unknown":  # a loop's counter is undefined after it: used only where nothing runs
        for k in range(3):
            v = v + k
        if p < 0:
            v = v + k
    tl.store(out + i, v, mask=i < n)


@triton.jit
def returning(x, out, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    if p > 0:
        if p > 2:
            return
        v = tl.load(x + i, mask=i < n) + 1
    else:
        v = tl.load(x + i, mask=i < n) * 2
    tl.store(out + i, v, mask=i < n)


def samples(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Numbers of a type, zero seldom among them; NaN and infinities among floats."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = (torch.randn(shape, generator=generator) * 4).to(dtype)
        values.view(-1)[3::41] = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 0.0])[
            seed % 5
        ]
        return values
    low, high = (1, 120) if dtype == torch.uint8 else (-120, 120)
    values = torch.randint(low, high, shape, generator=generator).to(dtype)
    values[values == 0] = 5
    return values


def _unary(op: str, dtype: torch.dtype, result: torch.dtype | None = None) -> torch.Tensor:
    out = torch.zeros(N, dtype=result or dtype)
    unary[(triton.cdiv(N, BLOCK),)](samples(dtype, (N,), 0), out, N, OP=op, BLOCK=BLOCK)
    return out


def _binary(op: str, dtype: torch.dtype, result: torch.dtype | None = None) -> torch.Tensor:
    out = torch.zeros(N, dtype=result or dtype)
    x, y = samples(dtype, (N,), 1), samples(dtype, (N,), 2)
    binary[(triton.cdiv(N, BLOCK),)](x, y, out, N, OP=op, BLOCK=BLOCK)
    return out


def _cast(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    out, x = torch.zeros(N, dtype=target), samples(source, (N,), 3)
    if source.is_floating_point and not target.is_floating_point:
        x = x.nan_to_num(1, 7, -7).abs() if target == torch.uint8 else x.nan_to_num(1, 7, -7)
    cast[(triton.cdiv(N, BLOCK),)](x, out, N, BLOCK=BLOCK)
    return out


def _blocks(
    op: str, dtype: torch.dtype, shape: tuple[int, int], result: torch.dtype | None = None
) -> torch.Tensor:
    rows, columns = shape
    x, y = (samples(dtype, (8, 40), seed)[:, :37].nan_to_num(1, 2, 3) for seed in (4, 5))
    out = torch.zeros(1024, dtype=result or dtype)
    blocks[(1,)](x, y, out, rows, columns, x.stride(0), OP=op, R=8, C=32)
    return out


def _memory(op: str, dtype: torch.dtype) -> torch.Tensor:
    out, counts = torch.zeros(N, dtype=dtype), torch.arange(8).to(dtype)
    x = samples(dtype, (N,), 6).nan_to_num(1, 2, 3).round()
    memory[(triton.cdiv(N, BLOCK),)](x, counts, out, N, OP=op, BLOCK=BLOCK)
    return torch.cat([out, counts])


def _returning(dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    returning[(4,)](samples(dtype, (N,), 7), out, N, BLOCK=BLOCK)
    return out


def _control(op: str, dtype: torch.dtype) -> torch.Tensor:
    out = torch.zeros(N, dtype=dtype)
    control[(6,)](samples(dtype, (N,), 7).nan_to_num(1, 2, 3), out, N, OP=op, BLOCK=BLOCK)
    return out


Case = tuple[Callable[..., torch.Tensor], tuple[object, ...]]


def cases() -> Iterator[Case]:
    """What is run: a function that launches a kernel, and its arguments."""
    for dtype in DTYPES:
        signed = dtype != torch.uint8
        for op in ("square", "not", *(("negative", "abs") if signed else ())):
            yield _unary, (op, dtype)
        for op in ("floor", "ceil", "sqrt_rn", "to_unsigned"):
            if op != "to_unsigned" or dtype in INTEGERS:
                yield _unary, (op, dtype, torch.float32)
        yield _unary, ("bits", dtype, torch.int32)
        for op in ("add", "sub", "mul", "min", "max", "less", "at_least", "unequal", "where"):
            yield _binary, (op, dtype)
        for op in ("div_rn", "fdiv", "truediv"):
            yield _binary, (op, dtype, torch.float32)
        for target in DTYPES:
            yield _cast, (dtype, target)
        for op in (
            "sum_columns", "max_columns", "own_sum", "pairs", "cumsum", "cumsum_back", "scan", "trans", "permute", "join",
            "interleave", "split", "sort", "flip", "gather", "ravel", "sum_rows", "argmin_rows",
        ):  # fmt: skip
            yield _blocks, (op, dtype, (5, 29))
        yield _blocks, ("dot", dtype, (8, 32), torch.float32)
    for dtype in (torch.float32, torch.int32, torch.int64):  # a loop may not widen what it carries
        for op in ("for", "while", "if", "unknown"):
            yield _control, (op, dtype)
        yield _returning, (dtype,)
    for dtype in FLOATS:
        for op in ("nan_min", "nan_max", "fma"):
            yield _binary, (op, dtype)
        yield _binary, ("mod", dtype)
    for dtype in INTEGERS:
        yield _unary, ("invert", dtype)
        for op in ("and", "or", "xor", "shl", "shr", "floordiv", "mod", "cdiv"):
            yield _binary, (op, dtype)
        yield _blocks, ("xor", dtype, (5, 29))
    yield _binary, ("umulhi", torch.int32)
    for dtype in (torch.int32, torch.int64):
        for op in ("and", "or", "xor", "swap", "exchange", "max", "min"):
            yield _memory, (op, dtype)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        yield _memory, ("add", dtype)
    for op in ("histogram", "random"):
        yield _memory, (op, torch.int32)
