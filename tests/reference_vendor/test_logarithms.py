from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, broadcastable, given, values
from hypothesis import strategies as st

PAIRS = ["aten::logaddexp", "aten::logaddexp2", "aten::xlogy.Tensor", "aten::special_xlog1py"]


@pytest.mark.parametrize("op", ["aten::exp2", "aten::log2", "aten::log10", "aten::special_entr"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_one_tensor(op: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, data.draw(values(data.draw(SHAPES), dtype, special=True)))


@pytest.mark.parametrize("op", PAIRS)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_two_tensors(op: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, *data.draw(broadcastable(dtype)))


@pytest.mark.parametrize("op", PAIRS)
def test_edges(op: str) -> None:
    edges = torch.tensor([0.0, -0.0, 1, -1, 2, float("inf"), -float("inf"), float("nan")])
    agree(op, edges[:, None], edges)


@pytest.mark.parametrize("eps", [None, 0.0, 1e-6, 0.2])
def test_logit(eps: float | None) -> None:
    x = torch.tensor([0.0, 1, -0.1, 1.1, 0.5, 0.2, 0.8, 0.9999, 1e-7, float("nan"), float("inf")])
    agree("aten::logit", x, eps)
    agree("aten::logit_backward", torch.linspace(-2, 2, 11), x, eps)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_integers_and_bool_give_the_default_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3, 1]).to(dtype)
    for name in ("exp2", "log2", "log10", "special_entr", "logit"):
        agree(f"aten::{name}", x)
    agree("aten::xlogy.Tensor", x, x)
    agree("aten::xlogy.Tensor", x, torch.rand(5))
