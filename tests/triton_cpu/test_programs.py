"""Control flow, products, and whole kernels written as the Triton tutorials do."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st


@triton.jit
def early_return_and_branches(x, out, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    if p * BLOCK >= n:
        return
    i = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if p == 2:
        v = v * 2
    elif p == 1:
        v = tl.exp(v)
    j = 0
    while j < p:
        v = v + 1
        j += 1
    tl.store(out + i, v, mask=i < n)


def test_early_returns_branches_and_loops() -> None:
    x, out = torch.randn(1000), torch.zeros(1000)
    early_return_and_branches[(12,)](x, out, 1000, BLOCK=128)
    parts = [part.clone() for part in x.split(128)]
    parts[2] *= 2
    parts[1] = parts[1].exp()
    for p, part in enumerate(parts):
        part.add_(p)
    torch.testing.assert_close(out, torch.cat(parts))


@triton.jit
def carried_together(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = a * 2
    c = tl.sum(a, 0)
    for _ in range(n):
        a, b = b, a + 1
        c = c * 0.5 + tl.max(a, 0)
    tl.store(out + i, a)
    tl.store(out + BLOCK + i, b + c)


def test_values_that_a_loop_exchanges() -> None:
    x, out = torch.randn(32), torch.zeros(64)
    for n in (0, 1, 5):
        carried_together[(1,)](x, out, n, BLOCK=32)
        a, b, c = x, x * 2, x.sum()
        for _ in range(n):
            a, b = b, a + 1
            c = c * 0.5 + a.max()
        torch.testing.assert_close(out, torch.cat([a, b + c]))


@triton.jit
def transpose_in_a_loop(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    a = tl.load(x + i)
    for _ in range(n):
        a = tl.trans(a) + tl.sum(a, 1)[:, None]
    tl.store(out + i, a)


def test_a_carried_block_that_is_read_at_other_indices() -> None:
    x, out = torch.randn(8, 8), torch.zeros(8, 8)
    transpose_in_a_loop[(1,)](x, out, 3, BLOCK=8)
    x = x.double()
    for _ in range(3):
        x = x.T + x.sum(1, keepdim=True)
    torch.testing.assert_close(out.double(), x, rtol=1e-5, atol=1e-3)


@triton.jit
def row_sums(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    pointers = x + tl.program_id(0) * n + c
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(pointers, mask=c < n - start, other=0.0)
        pointers += BLOCK
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


@settings(max_examples=15)
@given(rows=st.integers(1, 4), n=st.integers(1, 200))
def test_pointers_that_a_loop_moves(rows: int, n: int) -> None:
    x, out = torch.randn(rows, n), torch.zeros(rows)
    row_sums[(rows,)](x, out, n, BLOCK=32)
    torch.testing.assert_close(out, x.sum(1), rtol=1e-4, atol=1e-4)


@triton.jit
def matmul(a, b, c, M, N, K, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_pointers = a + (rm % M)[:, None] * am + rk[None, :] * ak
    b_pointers = b + rk[:, None] * bk + (rn % N)[None, :] * bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(a_pointers, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(b_pointers, mask=rk[:, None] < K - k * BK, other=0.0)
        total = tl.dot(x, y, total)
        a_pointers += BK * ak
        b_pointers += BK * bk
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(c.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(33, 50, 17), (64, 64, 64), (1, 5, 70)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(dtype: torch.dtype, size: tuple[int, int, int], transposed: bool) -> None:
    m, n, k = size
    a = torch.randn(m, k).to(dtype)
    b = torch.randn(n, k).to(dtype).T if transposed else torch.randn(k, n).to(dtype)
    c = torch.zeros(m, n, dtype=dtype)
    matmul[(triton.cdiv(m, 16), triton.cdiv(n, 32))](
        a, b, c, m, n, k, *a.stride(), *b.stride(), BM=16, BN=32, BK=16
    )
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        c.double(), a.double() @ b.double(), rtol=2 * eps, atol=2e-5 if dtype == torch.float32 else 10 * eps
    )


@triton.jit
def products(a, b, c, A: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, m, n, k = tl.arange(0, A)[:, None, None], tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i * M * K + m[None, :, None] * K + k[None, None, :])
    y = tl.load(b + i * K * N + k[None, :, None] * N + n[None, None, :])
    z = tl.dot(x, y, out_dtype=c.dtype.element_ty)
    tl.store(c + i * M * N + m[None, :, None] * N + n[None, None, :], z)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.int8, torch.int32)],
    ids=str,
)
def test_batched_products_of_other_types(dtype: torch.dtype, result: torch.dtype) -> None:
    a, b = torch.randint(-100, 100, (2, 16, 32)).to(dtype), torch.randint(-100, 100, (2, 32, 16)).to(dtype)
    c = torch.zeros(2, 16, 16, dtype=result)
    products[(1,)](a, b, c, 2, 16, 16, 32)
    assert torch.equal(c, torch.bmm(a.to(torch.float64), b.to(torch.float64)).to(result))


@triton.jit
def attention(
    q, k, v, out, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr
):
    head = tl.program_id(1) * S * D
    rm, rd = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    x = tl.load(q + head + rm[:, None] * D + rd[None, :], mask=rm[:, None] < S, other=0.0)
    highest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    result = tl.zeros((BM, D), tl.float32)
    for start in range(0, S, BN):
        rn = start + tl.arange(0, BN)
        inside = rn[:, None] < S
        keys = tl.load(k + head + rn[:, None] * D + rd[None, :], mask=inside, other=0.0)
        values = tl.load(v + head + rn[:, None] * D + rd[None, :], mask=inside, other=0.0)
        scores = tl.dot(x, tl.trans(keys)) * scale
        seen = (rn[None, :] < S) & (rm[:, None] >= rn[None, :]) if CAUSAL else rn[None, :] < S
        scores = tl.where(seen, scores, -float("inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        fade = tl.exp(highest - new)
        weights = tl.exp(scores - new[:, None])
        total = total * fade + tl.sum(weights, 1)
        result = tl.dot(weights.to(values.dtype), values, result * fade[:, None])
        highest = new
    tl.store(out + head + rm[:, None] * D + rd[None, :], result / total[:, None], mask=rm[:, None] < S)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("s", "d"), [(64, 16), (45, 32)])
def test_fused_attention(causal: bool, s: int, d: int) -> None:
    q, k, v = (torch.randn(2, s, d) for _ in range(3))
    out = torch.zeros(2, s, d)
    attention[(triton.cdiv(s, 16), 2)](q, k, v, out, s, d**-0.5, D=d, BM=16, BN=16, CAUSAL=causal)
    torch.testing.assert_close(
        out, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    )


@triton.jit
def layer_norm(x, w, b, out, mean, rstd, n, eps, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row * n + c, mask=mask, other=0.0).to(tl.float32)
    mu = tl.sum(v, 0) / n
    d = tl.where(mask, v - mu, 0.0)
    r = tl.rsqrt(tl.sum(d * d, 0) / n + eps)
    tl.store(mean + row, mu)
    tl.store(rstd + row, r)
    tl.store(out + row * n + c, d * r * tl.load(w + c, mask=mask) + tl.load(b + c, mask=mask), mask=mask)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, w, mean, rstd, n, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row * n + c, mask=mask, other=0.0)
    g = tl.load(dy + row * n + c, mask=mask, other=0.0)
    r = tl.load(rstd + row)
    h = (v - tl.load(mean + row)) * r
    h = tl.where(mask, h, 0.0)
    wg = tl.load(w + c, mask=mask, other=0.0) * g
    tl.store(dx + row * n + c, (wg - (h * tl.sum(h * wg, 0) + tl.sum(wg, 0)) / n) * r, mask=mask)
    tl.atomic_add(dw + c, g * h, mask=mask)
    tl.atomic_add(db + c, g, mask=mask)


@pytest.mark.parametrize("n", [96, 128, 5])
def test_layer_norm_and_its_gradients(n: int) -> None:
    x, w, b = (
        torch.randn(7, n, requires_grad=True),
        torch.randn(n, requires_grad=True),
        torch.randn(n, requires_grad=True),
    )
    expected = torch.nn.functional.layer_norm(x, (n,), w, b)
    dy = torch.randn(7, n)
    gradients = torch.autograd.grad(expected, (x, w, b), dy)
    out, mean, rstd = torch.zeros(7, n), torch.zeros(7), torch.zeros(7)
    dx, dw, db = torch.zeros(7, n), torch.zeros(n), torch.zeros(n)
    with torch.no_grad():
        layer_norm[(7,)](x.detach(), w.detach(), b.detach(), out, mean, rstd, n, 1e-5, BLOCK=128)
        layer_norm_backward[(7,)](dx, dy, dw, db, x.detach(), w.detach(), mean, rstd, n, BLOCK=128)
    torch.testing.assert_close(out, expected.detach())
    for mine, theirs in zip((dx, dw, db), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, tl.load(x + i, mask=i < n) / (1 - p), 0.0), mask=i < n)


def test_dropout_does_not_depend_on_the_grid() -> None:
    x, one, other = torch.ones(1000), torch.zeros(1000), torch.zeros(1000)
    dropout[(8,)](x, one, 1000, 0.3, 7, BLOCK=128)
    dropout[(32,)](x, other, 1000, 0.3, 7, BLOCK=32)
    assert torch.equal(one, other)
    assert 0.65 < (one != 0).float().mean() < 0.75
    assert set(one.tolist()) == {0.0, one.max().item()}


@triton.jit
def through_descriptors(a, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(a, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    for i in range(0, M, BM):
        for j in range(0, N, BN):
            target.store([i, j], source.load([i, j]) * 2)


def test_tensor_descriptors() -> None:
    a, out = torch.randn(21, 40), torch.zeros(22, 40)
    through_descriptors[(1,)](a, out, 21, 40, BM=8, BN=16)
    assert torch.equal(out[:21], a * 2)
    assert not out[21].any()


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 64 == 0})
@triton.jit
def tuned(x, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x + i, i + 1.0)
    else:
        tl.store(x + i, i - 1.0, mask=i < n)


def test_autotune_and_heuristics() -> None:
    for n in (128, 100):
        x = torch.zeros(n)
        tuned[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
        assert torch.equal(x, torch.arange(n) + (1.0 if n % 64 == 0 else -1.0))


def test_tritons_own_benchmark() -> None:
    """Autotuners with ``warmup=`` and ``rep=`` and the tutorials call it."""
    x = torch.zeros(128)
    times = triton.testing.do_bench(
        lambda: tuned[lambda meta: (128 // meta["BLOCK"],)](x, 128), warmup=1, rep=2, return_mode="all"
    )
    assert times
    assert min(times) > 0
