from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, broadcastable, given, run, values
from hypothesis import strategies as st

ONE: list[tuple[str, tuple[int, ...]]] = [
    ("aten::lgamma", ()), ("aten::digamma", ()), ("aten::polygamma", (1,)), ("aten::polygamma", (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "order"), ONE)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_positive_arguments(op: str, order: tuple[int, ...], data: st.DataObject, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype)).abs() + 0.3
    if order == (1,) and dtype is torch.float64:  # the host's own trigamma is off by 5e-10
        made = torch.from_numpy(np.array(run(op, 1, x)))
        torch.testing.assert_close(made, torch.special.zeta(2.0, x), rtol=1e-14, atol=0)
    else:
        agree(op, *order, x)


@pytest.mark.parametrize(("op", "order"), ONE)
def test_negative_arguments(op: str, order: tuple[int, ...]) -> None:
    x = torch.tensor([-0.25, -1.5, -2.3, -7.6, -10.1], dtype=torch.float64)
    host = getattr(torch, op[6:])(*order, x)
    torch.testing.assert_close(torch.from_numpy(run(op, *order, x)), host, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("op", "order"), ONE[:2])
def test_poles_and_infinities(op: str, order: tuple[int, ...]) -> None:
    agree(op, torch.tensor([0.0, -0.0, -1, -2, float("inf"), -float("inf"), float("nan"), 1e30, 1e-30]))


@pytest.mark.parametrize(("op", "order"), ONE)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_give_the_default_dtype(op: str, order: tuple[int, ...], dtype: torch.dtype) -> None:
    agree(op, *order, torch.tensor([1, 2, 3, 10, 100]).to(dtype))


def test_log_gamma_keeps_its_digits_around_its_zeros() -> None:
    x = np.concatenate([np.linspace(0.5, 30, 3001), 1 + np.logspace(-8, -1, 50), 2 + np.logspace(-8, -1, 50)])
    x = torch.from_numpy(x)
    np.testing.assert_allclose(run("aten::lgamma", x), torch.lgamma(x), rtol=1e-14)


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_zeta(data: st.DataObject, dtype: torch.dtype) -> None:
    s, q = data.draw(broadcastable(dtype, special=False))
    agree("aten::special_zeta", s.abs() + 1.1, q.abs() + 0.3)


def test_zeta_at_its_edges() -> None:
    s = torch.tensor([0.5, 1.0, 2.0, 2.5, 3.0, float("nan")], dtype=torch.float64)
    agree("aten::special_zeta", s[:, None], torch.tensor([0.0, 1.0, -1.0, -1.5, 2.5], dtype=torch.float64))


@pytest.mark.parametrize("op", ["aten::igamma", "aten::igammac"])
def test_incomplete_gamma(op: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for largest in (3, 60, 3000):
        a = torch.rand(2000, generator=generator) * largest + 0.01
        for x in (
            a + a.sqrt() * torch.randn(2000, generator=generator),
            torch.rand(2000, generator=generator) * largest,
        ):
            agree(op, a, x.abs())
    edges = torch.tensor([0.0, 1, 2.5, -1, float("inf"), float("nan")])
    agree(op, edges[:, None], edges)


def test_incomplete_gamma_to_double_precision() -> None:
    """P(n, x) of an integer n is a sum over n terms; the host itself is off by 4e-10 where both are near 20."""
    for n, x in ((1, 0.3), (5, 4.9), (20, 19.3), (20, 40.0)):
        upper = math.fsum(math.exp(-x) * x**k / math.factorial(k) for k in range(n))
        args = torch.tensor([float(n)], dtype=torch.float64), torch.tensor([x], dtype=torch.float64)
        np.testing.assert_allclose(run("aten::igammac", *args), upper, rtol=1e-12)
        np.testing.assert_allclose(run("aten::igamma", *args), 1 - upper, rtol=1e-12)
