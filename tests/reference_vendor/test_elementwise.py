from __future__ import annotations

import numpy as np
import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, broadcastable, given, run, values
from hypothesis import strategies as st

SCALARS = st.sampled_from([0, 1, 2, -3, 0.5, -1.7, 1e30, float("inf"), float("nan")])


@pytest.mark.parametrize("op", ["aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor",
                                "aten::maximum", "aten::minimum"])  # fmt: skip
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_two_float_tensors(op: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, *data.draw(broadcastable(dtype)))


@pytest.mark.parametrize("op", ["aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor",
                                "aten::add.Scalar", "aten::mul.Scalar", "aten::div.Scalar", "aten::sub.Scalar",
                                "aten::rsub.Scalar"])  # fmt: skip
@given(data=st.data(), dtype=st.sampled_from(FLOATS), scalar=SCALARS)
def test_a_tensor_and_a_python_number(
    op: str, data: st.DataObject, dtype: torch.dtype, scalar: float
) -> None:
    agree(op, data.draw(values(data.draw(SHAPES), dtype, special=True)), scalar)


@pytest.mark.parametrize("op", ["aten::add.Tensor", "aten::sub.Tensor"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS), alpha=st.sampled_from([2, -1, 0.3, -0.01]))
def test_alpha_costs_no_rounding(op: str, data: st.DataObject, dtype: torch.dtype, alpha: float) -> None:
    agree(op, *data.draw(broadcastable(dtype, special=False)), alpha=alpha)


@pytest.mark.parametrize("op", ["aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::maximum"])
@given(data=st.data(), dtype=st.sampled_from(INTEGERS))
def test_integers_wrap_as_the_host_does(op: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, *data.draw(broadcastable(dtype)))


@pytest.mark.parametrize("op", ["aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor"])
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32])
def test_a_number_may_come_first(op: str, dtype: torch.dtype) -> None:
    """As ``2 * x`` does, and the number of a list op once PyTorch has split it."""
    x = torch.tensor([1, 2, 3], dtype=dtype)
    function = {"aten::add.Tensor": torch.add, "aten::sub.Tensor": torch.sub, "aten::mul.Tensor": torch.mul}[
        op
    ]
    assert np.asarray(run(op, 2, x)).tolist() == function(2, x).tolist()


FUNCTIONS = ["neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "floor",
             "ceil", "round", "sign"]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_one_float_tensor(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    special = name not in {"sin", "cos"}  # the host's own cosine of 3e38 is off
    agree(f"aten::{name}", data.draw(values(data.draw(SHAPES), dtype, special=special)))


@pytest.mark.parametrize("op", ["aten::neg", "aten::abs"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_integer_tensor(op: str, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    agree(op, torch.tensor([limits.min, limits.max, 0, 1], dtype=dtype))


@given(data=st.data(), dtype=st.sampled_from(FLOATS),
       exponent=st.sampled_from([0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -1.3, 7]))  # fmt: skip
def test_powers(data: st.DataObject, dtype: torch.dtype, exponent: float) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree("aten::pow.Tensor_Scalar", x, exponent)
    agree("aten::pow.Scalar", 2.5, x)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, -1.3])
def test_powers_of_extremes(exponent: float) -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e30, -1e30, -2.0])
    agree("aten::pow.Tensor_Scalar", x, exponent)


@given(pair=broadcastable(torch.float32))
def test_power_of_tensors(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    agree("aten::pow.Tensor_Tensor", *pair)


@given(data=st.data(), dtype=st.sampled_from(FLOATS),
       limits=st.sampled_from([(-1, 1), (None, 0.5), (0, None), (2, -2), (float("nan"), 1)]))  # fmt: skip
def test_clamp(data: st.DataObject, dtype: torch.dtype, limits: tuple[float | None, float | None]) -> None:
    agree("aten::clamp", data.draw(values(data.draw(SHAPES), dtype, special=True)), *limits)


def test_clamp_between_tensors() -> None:
    x, low, high = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    agree("aten::clamp.Tensor", x, low, high)
    agree("aten::clamp.Tensor", x, None, high)
    agree("aten::clamp", torch.arange(5), 1, 3)
    agree("aten::clamp_min", x, 0.1)
    agree("aten::clamp_max", x, 0.1)


@given(data=st.data(), weight=st.sampled_from([0, 0.1, 0.49, 0.5, 0.9, 1, -2, 1.5]))
def test_lerp(data: st.DataObject, weight: float) -> None:
    start, end = data.draw(broadcastable(torch.float32, special=False))
    agree("aten::lerp.Scalar", start, end, weight)
    agree("aten::lerp.Tensor", start, end, torch.tensor(float(weight)))


@pytest.mark.parametrize("op", ["aten::addcmul", "aten::addcdiv"])
@pytest.mark.parametrize("value", [1, 0.5, -0.01])
def test_fused_updates(op: str, value: float) -> None:
    agree(op, torch.randn(3, 4), torch.randn(3, 1), torch.rand(4) + 0.5, value=value)


def test_the_users_numpy_settings_are_left_alone() -> None:
    before = np.geterr()
    run("aten::div.Tensor", torch.ones(2), torch.zeros(2))
    run("aten::rsqrt", torch.zeros(2))
    assert np.geterr() == before
