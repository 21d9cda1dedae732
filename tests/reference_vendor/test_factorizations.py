from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_host import COMPLEX, FLOATS, agree, given, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

DTYPES = st.sampled_from([*FLOATS, *COMPLEX])
BATCHES = st.sampled_from([(), (3,), (2, 2), (0,)])
SIZES = st.integers(1, 5)


@st.composite
def definite(draw: st.DrawFn, dtype: torch.dtype, batch: tuple[int, ...], size: int) -> torch.Tensor:
    x = draw(values((*batch, size, size), dtype))
    return x @ x.mH + torch.eye(size, dtype=dtype)


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, size=st.sampled_from([4, 1, 0]), upper=st.booleans())
def test_cholesky(data: Any, dtype: torch.dtype, batch: tuple[int, ...], size: int, upper: bool) -> None:
    a = data.draw(definite(dtype, batch, size))
    agree("aten::linalg_cholesky_ex", a, upper=upper)
    agree("aten::cholesky", a, upper)
    factor = torch.linalg.cholesky(a, upper=upper)
    agree("aten::_cholesky_solve_helper", data.draw(values((*batch, size, 2), dtype)), factor, upper)
    agree("aten::cholesky_inverse", factor, upper)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_a_matrix_that_is_not_positive_definite_is_named(dtype: torch.dtype) -> None:
    good = torch.tensor([[4, 2, 0], [2, 5, 1], [0, 1, 3]], dtype=dtype)
    bad = torch.tensor([[4, 2, 0], [2, 1, 0], [0, 0, 1]], dtype=dtype)
    factor, info = run("aten::linalg_cholesky_ex", torch.stack([good, bad]))
    assert info.tolist() == [0, 2]
    assert np.allclose(factor[0], torch.linalg.cholesky(good).numpy())
    with pytest.raises(Unsupported):
        run("aten::linalg_cholesky_ex", bad, check_errors=True)
    with (
        flroute.enable(device="reference", fallback="error"),
        pytest.raises(torch.linalg.LinAlgError, match="order 2"),
    ):
        torch.linalg.cholesky(bad.to("fl"))


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, rows=SIZES, columns=SIZES)
def test_qr(data: Any, dtype: torch.dtype, batch: tuple[int, ...], rows: int, columns: int) -> None:
    a = data.draw(values((*batch, rows, columns), dtype)) + torch.eye(rows, columns, dtype=dtype) * 5
    for mode in ("reduced", "complete", "r"):
        agree("aten::linalg_qr", a, mode)
    if a.numel():
        agree("aten::geqrf", a)
    vectors, tau = torch.geqrf(a)
    if rows >= columns:
        agree("aten::linalg_householder_product", vectors, tau)
    for left in (True, False):
        for transpose in (True, False):
            x = data.draw(values((*batch, rows, 3) if left else (*batch, 3, rows), dtype))
            agree("aten::ormqr", vectors, tau, x, left, transpose)


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, rows=SIZES, columns=SIZES)
def test_singular_values(
    data: Any, dtype: torch.dtype, batch: tuple[int, ...], rows: int, columns: int
) -> None:
    a = data.draw(values((*batch, rows, columns), dtype))
    _, s, _ = run("aten::_linalg_svd", a, False, False)
    assert torch.allclose(torch.from_numpy(s), torch.linalg.svdvals(a), atol=1e-5)
    for full in (False, True):
        made = [torch.from_numpy(np.array(part)) for part in run("aten::_linalg_svd", a, full)]
        host = torch.ops.aten._linalg_svd(a, full)
        assert [(m.shape, m.dtype) for m in made] == [(h.shape, h.dtype) for h in host]
        u, s, vh = made
        order = min(rows, columns)
        torch.testing.assert_close(
            (u[..., :order] * s[..., None, :]) @ vh[..., :order, :], a, rtol=1e-5, atol=1e-5
        )


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, size=SIZES, triangle=st.sampled_from("LU"))
def test_eigenvalues(data: Any, dtype: torch.dtype, batch: tuple[int, ...], size: int, triangle: str) -> None:
    a = data.draw(values((*batch, size, size), dtype))
    symmetric = a + a.mH
    made, vectors = (torch.from_numpy(part) for part in run("aten::_linalg_eigh", symmetric, triangle))
    torch.testing.assert_close(made, torch.linalg.eigvalsh(symmetric, triangle), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((vectors * made[..., None, :]) @ vectors.mH, symmetric, rtol=1e-5, atol=2e-5)
    made, vectors = (torch.from_numpy(part) for part in run("aten::linalg_eig", a))
    assert made.dtype == vectors.dtype == torch.linalg.eigvals(a).dtype
    torch.testing.assert_close(a.to(made.dtype) @ vectors, vectors * made[..., None, :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["_linalg_svd", "_linalg_eigh", "linalg_eig"])
def test_what_does_not_converge_is_left_to_the_host(op: str) -> None:
    with pytest.raises(Unsupported, match="no kernel"):
        run(f"aten::{op}", torch.full((2, 2), float("nan")))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_results_are_laid_out_as_on_the_host(batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 4, 3)
    square = x.mT @ x
    with flroute.enable(device="reference", fallback="error"):
        made = [*torch.geqrf(x.to("fl")), *torch.linalg.svd(x.to("fl")), *torch.linalg.qr(x.to("fl"))]
        out = torch.cholesky(square.to("fl"), out=torch.empty(0, device="fl"))
    host = [*torch.geqrf(x), *torch.linalg.svd(x), *torch.linalg.qr(x)]
    assert [t.stride() for t in made] == [t.stride() for t in host]
    assert out.stride() == torch.cholesky(square, out=torch.empty(0)).stride()


@pytest.mark.parametrize("columns", [0, 1])
def test_a_lazy_conjugate_is_laid_out_as_on_the_host(columns: int) -> None:
    def strides(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
        return torch.linalg.solve_triangular(a.mH, b.conj(), upper=False).stride()

    a, b = torch.eye(3, dtype=torch.complex64), torch.ones(3, columns, dtype=torch.complex64)
    with flroute.enable(device="reference", fallback="error"):
        made = strides(a.to("fl"), b.to("fl"))
    assert made == strides(a, b)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.cholesky,
        lambda a: torch.linalg.qr(a)[1],
        torch.linalg.svdvals,
        torch.linalg.eigvalsh,
        lambda a: torch.linalg.eigvals(a).real,
        torch.linalg.cond,
        lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
    ],
)
def test_backward_without_a_fallback(function: Any) -> None:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    a = x @ x.mT + torch.eye(4)

    def gradient(a: torch.Tensor) -> torch.Tensor:
        function(a).sum().backward()
        assert a.grad is not None
        return a.grad.cpu()

    expected = gradient(a.clone().requires_grad_())
    with flroute.enable(device="reference", fallback="error"):
        made = gradient(a.to("fl").requires_grad_())
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-4)
