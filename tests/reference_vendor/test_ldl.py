from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import COMPLEX, FLOATS, given, laid_out, run, values
from hypothesis import strategies as st

import flroute
from flroute.vendor import Unsupported

DTYPES = st.sampled_from([*FLOATS, *COMPLEX])
BATCHES = st.sampled_from([(), (3,), (2, 2), (0,)])


@st.composite
def symmetric(
    draw: st.DrawFn, dtype: torch.dtype, batch: tuple[int, ...], size: int, hermitian: bool
) -> torch.Tensor:
    """Indefinite matrices, with zeros on the diagonal now and then: these need blocks of two rows."""
    x = draw(values((*batch, size, size), dtype))
    x = x + (x.mH if hermitian else x.mT)
    if draw(st.booleans()):
        x = x - torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))
    return laid_out(x, draw(st.sampled_from(["contiguous", "transposed", "sliced"])))


@given(data=st.data(), dtype=DTYPES, batch=BATCHES, size=st.integers(0, 7), hermitian=st.booleans())
def test_factors_and_solutions(
    data: Any, dtype: torch.dtype, batch: tuple[int, ...], size: int, hermitian: bool
) -> None:
    a = data.draw(symmetric(dtype, batch, size, hermitian))
    factors, pivots, info = (
        torch.from_numpy(part) for part in run("aten::linalg_ldl_factor_ex", a, hermitian=hermitian)
    )
    expected = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    assert torch.equal(info, expected.info)
    assert torch.equal(pivots, expected.pivots)
    regular = (info == 0) & (torch.linalg.cond(a.to(torch.complex128)) < 1e3) if size else info == 0
    close = (
        {"rtol": 1e-3, "atol": 1e-3}
        if dtype in (torch.float32, torch.complex64)
        else {"rtol": 1e-8, "atol": 1e-8}
    )
    torch.testing.assert_close(factors[regular], expected.LD[regular], **close)
    b = data.draw(values((*batch, size, 2), dtype))
    if regular.all():
        x = torch.from_numpy(run("aten::linalg_ldl_solve", expected.LD, pivots, b, hermitian=hermitian))
        torch.testing.assert_close(a @ x, b, **close)


def test_only_the_lower_triangle_is_read() -> None:
    a = torch.tensor([[4.0, 99, 99], [1, 3, 99], [2, 0, -1]])
    for mine, host in zip(run("aten::linalg_ldl_factor_ex", a), torch.linalg.ldl_factor_ex(a), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), host)


def test_a_step_without_a_pivot_is_counted_from_one() -> None:
    a = torch.zeros(2, 3, 3)
    a[1, 0, 0] = 2
    factors, pivots, info = run("aten::linalg_ldl_factor_ex", a)
    expected = torch.linalg.ldl_factor_ex(a)
    assert info.tolist() == expected.info.tolist() == [1, 2]
    assert pivots.tolist() == expected.pivots.tolist()
    assert factors.tolist() == expected.LD.tolist()


def test_solutions_of_several_right_hand_sides_for_one_matrix() -> None:
    a, b = torch.tensor([[0.0, 2], [2, 1]]), torch.randn(4, 2, 3)
    factors, pivots = torch.linalg.ldl_factor(a)
    with flroute.enable("reference", fallback="error", default_device=False):
        x = torch.linalg.ldl_solve(factors.to("fl"), pivots.to("fl"), b.to("fl"))
    torch.testing.assert_close(a @ x.cpu(), b)


@pytest.mark.parametrize("a", [torch.full((2, 2), float("nan")), torch.zeros(2, 3)])
def test_what_is_left_to_the_host(a: torch.Tensor) -> None:
    with pytest.raises(Unsupported):
        run("aten::linalg_ldl_factor_ex", a)
