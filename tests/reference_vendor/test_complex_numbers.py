from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import (
    COMPLEX,
    FLOATS,
    FULL_SHAPES,
    INTEGERS,
    SHAPES,
    agree,
    broadcastable,
    given,
    values,
)
from hypothesis import strategies as st

import flroute

REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_made_from_parts(data: Any, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype))
    agree("aten::complex", x, y)
    x, y = data.draw(broadcastable(dtype, special=False))
    agree("aten::polar", x, y)


@given(data=st.data(), dtype=st.sampled_from([*FLOATS, *INTEGERS, torch.bool, *COMPLEX]))
def test_angle_and_sign(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype, special=True))
    agree("aten::angle", x)
    agree("aten::sgn", x)


def test_angle_and_sign_of_zero() -> None:
    for dtype in COMPLEX:
        x = torch.tensor([0j, -0.0 + 0j, 1 - 0j, -1 + 0j, 2j], dtype=dtype)
        agree("aten::sgn", x)
        agree("aten::angle", x)
    agree("aten::angle", torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")]))


@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "sqrt",
        "sin",
        "cos",
        "tanh",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "neg",
        "abs",
        "conj_physical",
        "_conj_physical",
    ],
)
@given(data=st.data(), dtype=st.sampled_from(COMPLEX))
def test_functions(name: str, data: Any, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", data.draw(values(data.draw(SHAPES), dtype)))


@pytest.mark.parametrize("name", ["tan", "asin", "acos", "atan", "atanh"])
@given(data=st.data(), dtype=st.sampled_from(COMPLEX))
def test_functions_away_from_poles(name: str, data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree(f"aten::{name}", torch.complex(x.real, x.imag.abs() + 0.2))


@pytest.mark.parametrize("name", ["log", "rsqrt", "reciprocal"])
@given(data=st.data(), dtype=st.sampled_from(COMPLEX))
def test_functions_away_from_zero(name: str, data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree(f"aten::{name}", x / x.abs() * x.abs().clamp(0.2, 9))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@given(data=st.data(), dtype=st.sampled_from(COMPLEX), factor=st.sampled_from([1, -2, 0.5, 1.5j]))
def test_arithmetic(name: str, data: Any, dtype: torch.dtype, factor: complex) -> None:
    op = f"aten::{name}.Tensor"
    named = {"alpha": factor} if name in ("add", "sub") else {}
    x, y = data.draw(broadcastable(dtype))
    agree(op, x, y, **named)
    agree(op, x, 2.5)
    shape = data.draw(FULL_SHAPES.filter(len))
    z, real = data.draw(values(shape, dtype)), data.draw(values(shape, REAL_OF[dtype]))
    agree(op, z, real, **named)
    if not isinstance(factor, complex):
        agree(op, real, z, **named)
    agree("aten::rsub.Scalar", z, 1.5, factor)


@given(data=st.data(), dtype=st.sampled_from(COMPLEX), keepdim=st.booleans())
def test_sums_and_means(data: Any, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype))
    dims = data.draw(st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim))
    for name in ("sum", "mean"):
        agree(f"aten::{name}", x)
        agree(f"aten::{name}.dim" + ("_IntList" if name == "sum" else ""), x, dims, keepdim)


@given(
    data=st.data(),
    dtype=st.sampled_from(COMPLEX),
    alpha=st.sampled_from([1, 2j]),
    beta=st.sampled_from([0, 1, 1j]),
)
def test_products(data: Any, dtype: torch.dtype, alpha: complex, beta: complex) -> None:
    x, y = data.draw(values((2, 3, 4), dtype)), data.draw(values((2, 4, 5), dtype))
    agree("aten::bmm", x, y)
    agree("aten::mm", x[0], y[0])
    agree("aten::mv", x[0], y[0, :, 0])
    agree("aten::dot", x[0, 0], y[0, :, 0])
    agree("aten::addmm", data.draw(values((3, 5), dtype)), x[0], y[0], alpha=alpha, beta=beta)


@given(data=st.data(), dtype=st.sampled_from(COMPLEX))
def test_moves_and_choices(data: Any, dtype: torch.dtype) -> None:
    x, y = data.draw(values((3, 4), dtype)), data.draw(values((3, 4), dtype))
    agree("aten::cat", [x, y], 1)
    agree("aten::tril", x, -1)
    agree("aten::triu", x, 1)
    agree("aten::flip", x, [1])
    agree("aten::where.self", data.draw(values((4,), torch.bool)), x, y)
    agree("aten::eq.Tensor", x, x)
    agree("aten::ne.Scalar", x, 1j)
    agree("aten::pow.Tensor_Scalar", x, 2)
    agree("aten::pow.Tensor_Scalar", x, 1.5)
    agree("aten::pow.Tensor_Tensor", x, y / 5)


def test_other_real_types_are_promoted() -> None:
    z = torch.ones(2, dtype=torch.complex64)
    for other in (torch.ones(2, dtype=torch.float64), torch.ones(()), torch.ones(2, dtype=torch.int64)):
        agree("aten::mul.Tensor", z, other)


def test_a_lazy_conjugate_and_its_gradient_run_without_a_fallback() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    expected = x.clone().requires_grad_()
    (expected @ expected.mH).abs().sum().backward()
    with flroute.enable(device="reference", fallback="error"):
        on_device = x.to("fl").requires_grad_()
        (on_device @ on_device.mH).abs().sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), expected.grad)
