from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from against_host import COMPLEX, FLOATS, agree, given, laid_out, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

DTYPES = st.sampled_from([*FLOATS, *COMPLEX])
BATCHES = st.sampled_from([(), (3,), (2, 2), (0,)])
SIZES = st.sampled_from([4, 3, 1, 0])


@st.composite
def regular(draw: st.DrawFn, dtype: torch.dtype, batch: tuple[int, ...], size: int) -> torch.Tensor:
    """Square matrices that are far from singular, in some layout."""
    x = draw(values((*batch, size, size), dtype)) / 4 + torch.eye(size, dtype=dtype) * 10
    return laid_out(x, draw(st.sampled_from(["contiguous", "transposed", "sliced"])))


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, size=SIZES, left=st.booleans())
def test_systems(data: Any, dtype: torch.dtype, batch: tuple[int, ...], size: int, left: bool) -> None:
    a = data.draw(regular(dtype, batch, size))
    b = data.draw(values((*batch, size, 3) if left else (*batch, 3, size), dtype))
    agree("aten::_linalg_solve_ex", a, b, left=left)
    lu, pivots = torch.linalg.lu_factor(a)
    for adjoint in (False, True):
        agree("aten::linalg_lu_solve", lu, pivots, b, left=left, adjoint=adjoint)
    for upper in (False, True):
        for unit in (False, True):
            t = a / 10 if unit else a
            agree("aten::linalg_solve_triangular", t, b, upper=upper, left=left, unitriangular=unit)
    agree("aten::_linalg_solve_ex", a, data.draw(values((*batch, size), dtype)))


@given(data=st.data(), dtype=DTYPES, transpose=st.booleans(), upper=st.booleans())
def test_older_triangular_solve(data: Any, dtype: torch.dtype, transpose: bool, upper: bool) -> None:
    a, b = data.draw(regular(dtype, (2,), 4)), data.draw(values((2, 4, 3), dtype))
    agree("aten::triangular_solve", b, a, upper, transpose, False)


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, size=SIZES)
def test_of_square_matrices(data: Any, dtype: torch.dtype, batch: tuple[int, ...], size: int) -> None:
    a = data.draw(regular(dtype, batch, size))
    for op in ("linalg_inv_ex", "_linalg_det", "_linalg_slogdet"):
        agree(f"aten::{op}", a)


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_decomposition(
    data: Any, dtype: torch.dtype, batch: tuple[int, ...], rows: int, columns: int
) -> None:
    a = data.draw(values((*batch, rows, columns), dtype))
    a = a + torch.eye(rows, columns, dtype=dtype) * 10
    agree("aten::linalg_lu_factor_ex", a)
    agree("aten::linalg_lu", a)
    lu, pivots = torch.linalg.lu_factor(a)
    for data_too, pivots_too in ((True, True), (False, True), (True, False)):
        agree("aten::lu_unpack", lu, pivots, data_too, pivots_too)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_matrices_of_many_blocks(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(2, 70, n, dtype=dtype, generator=generator) for n in (70, 20))
    lu, pivots, info = run("aten::linalg_lu_factor_ex", a)
    host_lu, host_pivots, _ = torch.linalg.lu_factor_ex(a.to(torch.promote_types(dtype, torch.float64)))
    assert np.array_equal(pivots, host_pivots.numpy())
    assert not info.any()
    assert np.allclose(lu, host_lu.numpy(), rtol=1e-5, atol=1e-5)
    x = torch.from_numpy(run("aten::_linalg_solve_ex", a, b)[0])
    assert (a @ x - b).abs().max() <= 2 * (a @ torch.linalg.solve(a, b) - b).abs().max() + 1e-12


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_singular_matrix_is_named(dtype: torch.dtype) -> None:
    a = torch.stack([torch.eye(3, dtype=dtype), torch.ones(3, 3, dtype=dtype)])
    for op, where in (("linalg_inv_ex", 1), ("linalg_lu_factor_ex", 2)):
        assert run(f"aten::{op}", a)[where].tolist() == [0, 2]
        with pytest.raises(Unsupported):
            run(f"aten::{op}", a, check_errors=True)
    agree("aten::_linalg_det", a)
    agree("aten::_linalg_slogdet", a)
    with (
        flroute.enable(device="reference", fallback="error"),
        pytest.raises(torch.linalg.LinAlgError, match="Batch element 1"),
    ):
        torch.linalg.inv(a.to("fl"))


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("_linalg_solve_ex", [(3, 2), (3, 2)]),
        ("_linalg_solve_ex", [(3, 3), (2, 2)]),
        ("linalg_inv_ex", [(3, 2)]),
        ("_linalg_det", [(3,)]),
        ("linalg_lu", [(3,)]),
    ],
)
def test_wrong_shapes_are_left_to_the_host(op: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(Unsupported):
        run(f"aten::{op}", *map(torch.ones, shapes))


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.det,
        torch.linalg.slogdet,
        torch.logdet,
        lambda a: torch.linalg.solve(a, a.mT[:, :2]),
        torch.linalg.lu,
    ],
)
def test_backward_without_a_fallback(function: Any) -> None:
    a = torch.eye(4) * 3 + torch.randn(4, 4, generator=torch.Generator().manual_seed(3)) / 4

    def gradient(x: torch.Tensor) -> torch.Tensor:
        results = function(x)
        parts = results if isinstance(results, tuple) else (results,)
        sum(part.sum() for part in parts if part.requires_grad).backward()
        assert x.grad is not None
        return x.grad.cpu()

    expected = gradient(a.clone().requires_grad_())
    with flroute.enable(device="reference", fallback="error"):
        made = gradient(a.to("fl").requires_grad_())
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
