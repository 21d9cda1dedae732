"""Blocks as wholes: loads and stores, what may not be reordered, shapes, reductions, scans, sorting, atomics."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st


@triton.jit
def strided_copy(x, out, rows, columns, row_stride, column_stride, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    mask = (r < rows) & (c < columns)
    v = tl.load(x + r * row_stride + c * column_stride, mask=mask, other=-1.0)
    tl.store(out + r * columns + c, v * 2, mask=mask)


@settings(max_examples=25)
@given(
    rows=st.integers(0, 20), columns=st.integers(0, 40), row_step=st.integers(1, 3), column_step=st.integers(1, 3), turned=st.booleans(),
)  # fmt: skip
def test_any_size_and_stride(rows: int, columns: int, row_step: int, column_step: int, turned: bool) -> None:
    shape = (columns * column_step, rows * row_step) if turned else (rows * row_step, columns * column_step)
    base = torch.randn(shape)
    x = (base.T if turned else base)[::row_step, ::column_step]
    guard = torch.full((rows * columns + 64,), 7.0)
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 16))
    strided_copy[grid](x, guard, rows, columns, x.stride(0), x.stride(1), R=8, C=16)
    assert torch.equal(guard[: rows * columns].view(rows, columns), x * 2)
    assert bool((guard[rows * columns :] == 7).all())  # nothing is written outside


@triton.jit
def masks_of_every_form(x, out, n, low, BLOCK: tl.constexpr, FORM: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FORM == "below":
        mask = i < n
    elif FORM == "at most":
        mask = i <= n - 1
    elif FORM == "turned":
        mask = n > i
    elif FORM == "window":
        mask = (i >= low) & (i < n)
    elif FORM == "odd":
        mask = (i % 2 == 1) & (i < n)
    elif FORM == "unequal":
        mask = (i != low) & (i < n)
    elif FORM == "backwards":
        mask = (n - 1 - i >= 0) & (n - 1 - i < n)
    v = tl.load(x + i, mask=mask, other=5.0)
    tl.store(out + i, v + 1, mask=i < n)


@settings(max_examples=40)
@given(
    n=st.integers(0, 70),
    low=st.integers(-3, 40),
    form=st.sampled_from(["below", "at most", "turned", "window", "odd", "unequal", "backwards"]),
)
def test_masks_of_every_form(n: int, low: int, form: str) -> None:
    x, i = torch.randn(n), torch.arange(n)
    out = torch.full((80,), 9.0)
    masks_of_every_form[(triton.cdiv(n, 16),)](x, out, n, low, BLOCK=16, FORM=form)
    mask = {"window": i >= low, "odd": i % 2 == 1, "unequal": i != low}.get(form, i >= 0)
    assert torch.equal(out[:n], torch.where(mask, x, 5.0) + 1)
    assert bool((out[n:] == 9).all())


@triton.jit
def reverse_in_place(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + BLOCK - 1 - i))


@triton.jit
def shift_in_place(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i + 1))


@triton.jit
def swap(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(x + i, b)
    tl.store(y + i, a)


@triton.jit
def rotate_three(x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(x + i, tl.load(y + i))
    b = tl.load(z + i)
    tl.store(z + i, a)
    tl.store(y + i, b)


@triton.jit
def store_then_load(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(x + i, v + 1)
    tl.store(out + i, tl.load(x + BLOCK - 1 - i) + v)


@triton.jit
def load_before_a_loop_that_stores(x, out, times, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    for _ in range(times):
        tl.store(x + i, tl.load(x + i) * 2)
    tl.store(out + i, v)


def test_a_program_reads_what_it_has_not_written_yet() -> None:
    x = torch.randn(64)
    expected = x.flip(0)
    reverse_in_place[(1,)](x, BLOCK=64)
    assert torch.equal(x, expected)
    x = torch.randn(65)
    expected = x[1:].clone()
    shift_in_place[(1,)](x, BLOCK=64)
    assert torch.equal(x[:64], expected)


def test_loads_stay_before_the_stores_that_follow_them() -> None:
    x, y, z = torch.randn(64), torch.randn(64), torch.randn(64)
    a, b, c = x.clone(), y.clone(), z.clone()
    swap[(1,)](x, y, BLOCK=64)
    assert torch.equal(x, b)
    assert torch.equal(y, a)
    x, y = a.clone(), b.clone()
    rotate_three[(1,)](x, y, z, BLOCK=64)
    assert torch.equal(x, b)
    assert torch.equal(y, c)
    assert torch.equal(z, a)
    x, out = a.clone(), torch.zeros(64)
    store_then_load[(1,)](x, out, BLOCK=64)
    assert torch.equal(out, (a + 1).flip(0) + a)
    x = a.clone()
    load_before_a_loop_that_stores[(1,)](x, out, 3, BLOCK=64)
    assert torch.equal(out, a)
    assert torch.equal(x, a * 8)


@triton.jit
def shapes(x, y, out, A: tl.constexpr, B: tl.constexpr, OP: tl.constexpr):
    n: tl.constexpr = A * B
    i = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    flat = tl.arange(0, n)
    v = tl.exp(tl.load(x + i))
    w = tl.load(y + i)
    if OP == "transpose":
        tl.store(out + flat, tl.reshape(tl.trans(v), (n,)))
    elif OP == "reshape":
        tl.store(out + tl.arange(0, B)[:, None] * A + tl.arange(0, A)[None, :], tl.reshape(v, (B, A)))
    elif OP == "join":
        tl.store(out + tl.arange(0, 2 * n), tl.reshape(tl.join(v, w), (2 * n,)))
    elif OP == "split":
        a, b = tl.split(tl.reshape(v, (A, B // 2, 2)))
        tl.store(out + tl.arange(0, n // 2), tl.reshape(a - 2 * b, (n // 2,)))
    elif OP == "cat":
        tl.store(out + tl.arange(0, 2 * n), tl.cat(tl.reshape(v, (n,)), tl.reshape(w, (n,))))
    elif OP == "broadcast":
        tl.store(
            out + i,
            v * tl.log(tl.load(y + tl.arange(0, B)) + 9)[None, :] + tl.load(x + tl.arange(0, A))[:, None],
        )
    elif OP == "permute":
        t = tl.permute(tl.reshape(v, (A, B // 2, 2)), (2, 0, 1))
        tl.store(out + flat, tl.reshape(t, (n,)))


@pytest.mark.parametrize("op", ["transpose", "reshape", "join", "split", "cat", "broadcast", "permute"])
@pytest.mark.parametrize(("a", "b"), [(4, 16), (1, 8), (32, 2)])
def test_shapes(op: str, a: int, b: int) -> None:
    x, y = torch.randn(a, b), torch.rand(a, b)
    v = x.exp()
    expected = {
        "transpose": v.T, "reshape": v.reshape(b, a), "join": torch.stack([v, y], -1), "cat": torch.cat([v.reshape(-1), y.reshape(-1)]),
        "split": v.reshape(a, b // 2, 2)[..., 0] - 2 * v.reshape(a, b // 2, 2)[..., 1],
        "broadcast": v * (y.reshape(-1)[:b] + 9).log() + x.reshape(-1)[:a, None], "permute": v.reshape(a, b // 2, 2).permute(2, 0, 1),
    }[op].reshape(-1)  # fmt: skip
    out = torch.zeros(2 * a * b)
    shapes[(1,)](x, y, out, A=a, B=b, OP=op)
    torch.testing.assert_close(out[: expected.numel()], expected)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def first_of_two(v1, i1, v2, i2):
    keep = i1 < i2
    return tl.where(keep, v1, v2), tl.where(keep, i1, i2)


@triton.jit
def linear_recurrence(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def reduce(
    x,
    out,
    which,
    n,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    AXIS: tl.constexpr,
    OP: tl.constexpr,
    FILL: tl.constexpr,
):
    a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
    i = (a * B + b) * C + c
    mask = (c < n) & (b < 1000)
    v = tl.load(x + i, mask=mask, other=FILL)
    if OP == "sum":
        r = tl.sum(v, AXIS)
    elif OP == "max":
        r = tl.max(v, AXIS)
    elif OP == "min":
        r = tl.min(v, AXIS)
    elif OP == "product":
        r = tl.reduce(v, AXIS, product)
    elif OP == "argmax":
        r, k = tl.max(v, AXIS, return_indices=True)
    elif OP == "first":
        r, k = tl.reduce((v, i), AXIS, first_of_two)
    size: tl.constexpr = A * B * C // (A if AXIS == 0 else (B if AXIS == 1 else C))
    tl.store(out + tl.arange(0, size), tl.reshape(r, (size,)))
    if OP == "argmax":
        tl.store(which + tl.arange(0, size), tl.reshape(k, (size,)))


@pytest.mark.parametrize("shape", [(4, 2, 16), (1, 16, 128), (32, 16, 1)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["sum", "max", "min", "product", "argmax", "first"])
def test_reductions_on_any_axis(op: str, axis: int, shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape)
    n = max(shape[2] * 3 // 4, 1)
    fill = {"max": float("-inf"), "argmax": float("-inf"), "min": float("inf"), "product": 1.0}.get(op, 0.0)
    seen = x.clone()
    seen[..., n:] = fill
    expected = {
        "sum": lambda: seen.sum(axis), "max": lambda: seen.amax(axis), "min": lambda: seen.amin(axis), "product": lambda: seen.prod(axis),
        "argmax": lambda: seen.amax(axis), "first": lambda: seen.select(axis, 0),
    }[op]()  # fmt: skip
    out, which = torch.zeros(expected.numel()), torch.zeros(expected.numel(), dtype=torch.int32)
    reduce[(1,)](x, out, which, n, *shape, AXIS=axis, OP=op, FILL=fill)
    torch.testing.assert_close(out, expected.reshape(-1), rtol=1e-5, atol=1e-5)
    if op == "argmax":
        assert torch.equal(which.long(), seen.argmax(axis).reshape(-1))


@triton.jit
def row_softmax(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + tl.program_id(0) * n + c, e / tl.sum(e, 0), mask=c < n)


@settings(max_examples=20)
@given(
    rows=st.integers(1, 5),
    n=st.integers(1, 300),
    special=st.sampled_from([0.0, float("inf"), float("-inf"), float("nan")]),
)
def test_softmax_of_any_width(rows: int, n: int, special: float) -> None:
    x = torch.randn(rows, n)
    if special:
        x[0, n // 2] = special
    out = torch.zeros(rows, n)
    row_softmax[(rows,)](x, out, n, BLOCK=512)
    torch.testing.assert_close(out, torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_sums_of_other_types(dtype: torch.dtype) -> None:
    x = torch.randint(-5, 5, (4, 2, 128)).to(dtype)
    out = torch.zeros(8, dtype=dtype)
    reduce[(1,)](x, out, torch.zeros(8, dtype=torch.int32), 100, 4, 2, 128, AXIS=2, OP="sum", FILL=0)
    assert torch.equal(out, x[..., :100].sum(2).to(dtype).reshape(-1))


@triton.jit
def scan(
    x, y, out, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, OP: tl.constexpr
):
    i = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    v = tl.load(x + i)
    if OP == "sum":
        r = tl.cumsum(v, AXIS, reverse=REVERSE)
    elif OP == "product":
        r = tl.cumprod(v, AXIS, reverse=REVERSE)
    elif OP == "recurrence":
        _, r = tl.associative_scan((v, tl.load(y + i)), AXIS, linear_recurrence, reverse=REVERSE)
    tl.store(out + i, r)


@pytest.mark.parametrize("op", ["sum", "product", "recurrence"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(op: str, axis: int, reverse: bool) -> None:
    x, y, out = torch.rand(8, 32) + 0.5, torch.randn(8, 32), torch.zeros(8, 32)
    scan[(1,)](x, y, out, 8, 32, AXIS=axis, REVERSE=reverse, OP=op)
    a, b = (t.flip(axis) if reverse else t for t in (x.double(), y.double()))
    if op == "recurrence":
        steps = [b.select(axis, 0)]
        for k in range(1, x.shape[axis]):
            steps.append(steps[-1] * a.select(axis, k) + b.select(axis, k))
        expected = torch.stack(steps, axis)
    else:
        expected = a.cumsum(axis) if op == "sum" else a.cumprod(axis)
    torch.testing.assert_close(
        out, (expected.flip(axis) if reverse else expected).float(), rtol=1e-4, atol=1e-4
    )


@triton.jit
def sort_and_count(x, out, counts, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, tl.sort(v))
    tl.store(counts + tl.arange(0, BINS), tl.histogram(v, BINS))


def test_sort_and_histogram() -> None:
    x = torch.randint(-3, 20, (16,), dtype=torch.int32)
    out, counts = torch.zeros_like(x), torch.zeros(16, dtype=torch.int32)
    sort_and_count[(1,)](x, out, counts, BLOCK=16, BINS=16)
    assert torch.equal(out, x.sort()[0])
    assert torch.equal(counts, torch.bincount(x[(x >= 0) & (x < 16)], minlength=16).int())


@triton.jit
def gather_rows(x, index, out, A: tl.constexpr, B: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(out + i, tl.gather(tl.load(x + i) + 1, tl.load(index + i), AXIS))


@triton.jit
def embedding(table, index, out, n, width, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, WIDTH)
    row = tl.load(index + i, mask=i < n, other=0)
    mask = (i < n)[:, None] & (c < width)[None, :]
    v = tl.load(table + row[:, None] * width + c[None, :], mask=mask)
    tl.store(out + i[:, None] * width + c[None, :], v, mask=mask)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    x, index = torch.randn(8, 16), torch.randint(0, 8, (8, 16), dtype=torch.int32)
    out = torch.zeros(8, 16)
    gather_rows[(1,)](x, index, out, 8, 16, AXIS=axis)
    assert torch.equal(out, torch.gather(x + 1, axis, index.long()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_loads_through_loaded_indices(dtype: torch.dtype) -> None:
    table, index = torch.randn(50, 20), torch.randint(0, 50, (37,), dtype=dtype)
    out = torch.zeros(37, 20)
    embedding[(5,)](table, index, out, 37, 20, BLOCK=8, WIDTH=32)
    assert torch.equal(out, table[index.long()])


@triton.jit
def atomics(x, out, old, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    p = out + i % 7
    if OP == "add":
        r = tl.atomic_add(p, v, mask=i < n)
    elif OP == "max":
        r = tl.atomic_max(p, v, mask=i < n)
    elif OP == "min":
        r = tl.atomic_min(p, v, mask=i < n)
    elif OP == "xchg":
        r = tl.atomic_xchg(p, v, mask=i < n)
    tl.store(old + i, r, mask=i < n)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op in ("add", "max", "min", "xchg")
        for dtype in (torch.int32, torch.float32, torch.int64)
    ]
    + [("add", dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)],
    ids=str,
)
def test_atomics(op: str, dtype: torch.dtype) -> None:
    n = 100
    x = torch.randint(-50, 50, (n,)).to(dtype)
    out, old = torch.zeros(7, dtype=dtype), torch.zeros(n, dtype=dtype)
    atomics[(4,)](x, out, old, n, OP=op, BLOCK=32)
    expected, returned = torch.zeros(7, dtype=dtype), torch.zeros(n, dtype=dtype)
    for i in range(n):
        before = expected[i % 7].clone()
        returned[i] = before
        expected[i % 7] = {
            "add": before + x[i],
            "max": max(before, x[i]),
            "min": min(before, x[i]),
            "xchg": x[i],
        }[op]
    assert torch.equal(out, expected)
    if dtype != torch.float32 or op in {
        "add",
        "xchg",
    }:  # of float32, Triton itself makes two integer operations of max and min
        assert torch.equal(old, returned)


@triton.jit
def sum_into_one(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i % 2, tl.load(x + i), sem="relaxed")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_atomic_sums_of_many_threads_lose_nothing(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flroute.reference_vendor.triton_cpu.launcher._WORTH_SPLITTING", 0.0)
    torch.set_num_threads(4)
    x = torch.full((32 * 1024,), 2.0**-8).to(dtype)
    for _ in range(2):  # the second launch is split
        out = torch.zeros(2, dtype=dtype)
        sum_into_one[(32,)](x, out, BLOCK=1024)
    lossless = {torch.float16: 8.0, torch.bfloat16: 1.0}.get(dtype, 64.0)  # up to where a term is half a unit
    assert out.tolist() == [lossless, lossless]


@triton.jit
def take_lock(lock, total, n):
    for _ in range(n):
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(total, tl.load(total) + 1)
        tl.atomic_xchg(lock, 0)


def test_compare_and_swap() -> None:
    lock, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    take_lock[(5,)](lock, total, 3)
    assert total.item() == 15
    assert lock.item() == 0


@triton.jit
def copy_bools(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, ~v & (tl.sum(v.to(tl.int32), 0) > 3), mask=i < n)


def test_bools_in_memory() -> None:
    x = torch.arange(20) % 3 == 0
    out = torch.zeros(20, dtype=torch.bool)
    copy_bools[(1,)](x, out, 20, BLOCK=32)
    assert torch.equal(out, ~x)
