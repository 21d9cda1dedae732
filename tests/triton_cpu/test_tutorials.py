"""Triton's tutorials, run on the CPU: each kernel against PyTorch."""

from __future__ import annotations

import pytest
import torch
import triton
from tutorial_kernels import (
    dropout,
    fused_attention,
    fused_softmax,
    layer_norm_backward,
    layer_norm_forward,
    matmul,
    seeded_dropout,
    sum_of_groups,
    vector_add,
)


@pytest.mark.parametrize("n", [1, 98432])
def test_vector_add(n: int) -> None:
    x, y, out = torch.rand(n), torch.rand(n), torch.zeros(n)
    vector_add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("programs", [1, 3, 50])
def test_fused_softmax(programs: int) -> None:
    x, out = torch.randn(41, 781), torch.zeros(41, 781)
    fused_softmax[(programs, 1, 1)](out, x, x.stride(0), out.stride(0), 41, 781, BLOCK=1024, STAGES=4)
    torch.testing.assert_close(out, torch.softmax(x, 1))


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_matmul(activation: str, dtype: torch.dtype) -> None:
    m, n, k = 70, 45, 100
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.zeros(m, n, dtype=dtype)
    matmul[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), ACTIVATION=activation
    )
    expected = a.double() @ b.double()
    if activation:
        expected = torch.nn.functional.leaky_relu(expected, 0.01)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        c.double(), expected, rtol=2 * eps, atol=50 * eps if dtype == torch.float32 else eps
    )


def test_dropout() -> None:
    x, keep, out = torch.randn(1000), torch.rand(1000) > 0.5, torch.zeros(1000)
    dropout[(4,)](x, keep, out, 1000, 0.5, BLOCK=256)
    assert torch.equal(out, torch.where(keep, x / 0.5, 0.0))


def test_seeded_dropout() -> None:
    x = torch.randn(10_000)
    outs = [torch.zeros(10_000) for _ in range(3)]
    for out, seed, block in zip(outs, (123, 123, 512), (1024, 256, 1024), strict=True):
        seeded_dropout[(triton.cdiv(10_000, block),)](x, out, 10_000, 0.5, seed, BLOCK=block)
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    kept = outs[0] != 0
    assert torch.equal(outs[0][kept], x[kept] * 2)
    assert 0.47 < kept.double().mean() < 0.53


@pytest.mark.parametrize("threads", [1, 2])
def test_layer_norm(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flroute.reference_vendor.triton_cpu.launcher._WORTH_SPLITTING", 0.0)
    torch.set_num_threads(threads)  # the locks are then held against another thread
    rows, n, groups = 151, 100, 8
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((rows, n), (n,), (n,)))
    expected = torch.nn.functional.layer_norm(x, (n,), w, b, 1e-5)
    dy = torch.randn(rows, n)
    gradients = torch.autograd.grad(expected, (x, w, b), dy)
    x, w, b = x.detach(), w.detach(), b.detach()
    out, mean, rstd = torch.zeros(rows, n), torch.zeros(rows), torch.zeros(rows)
    layer_norm_forward[(rows,)](x, out, w, b, mean, rstd, x.stride(0), n, 1e-5, BLOCK=32)
    torch.testing.assert_close(out, expected.detach())
    for _ in range(2):  # the second launch is split
        lock = torch.zeros(2 * groups, dtype=torch.int32)
        dx, dw, db = torch.zeros(rows, n), torch.zeros(groups, n), torch.zeros(groups, n)
        layer_norm_backward[(rows,)](
            dx, dy, dw, db, x, w, mean, rstd, lock, x.stride(0), n, GROUP=groups, BLOCK=128
        )
    whole = torch.zeros(2, n)
    for parts, sums in zip((dw, db), whole, strict=True):
        sum_of_groups[(triton.cdiv(n, 64),)](parts, sums, groups, n, BM=4, BN=64)
    for mine, theirs in zip((dx, *whole), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_fused_attention(causal: bool, dtype: torch.dtype) -> None:
    heads, s, d = 3, 128, 32
    q, k, v = (torch.randn(heads, s, d).to(dtype) for _ in range(3))
    out, logsumexp = torch.zeros_like(q), torch.zeros(heads, s)
    fused_attention[(s // 32, heads)](
        q, k, v, out, logsumexp, 0.5, heads, S=s, D=d, BM=32, BN=16, STAGE=3 if causal else 1
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal, scale=0.5
    )
    tolerance = 1e-2 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
