from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, broadcastable, given, values
from hypothesis import strategies as st

FUNCTIONS = ["tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sinc"]


@pytest.mark.parametrize("name", FUNCTIONS)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_one_tensor(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    special = name not in {"tan", "sinc"}  # the host's own tangent of 3e38 is off
    agree(f"aten::{name}", data.draw(values(data.draw(SHAPES), dtype, special=special)))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_integers_and_bool_give_the_default_dtype(name: str, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", torch.tensor([0, 1, 2, 3, 1]).to(dtype))


@pytest.mark.parametrize("op", ["aten::atan2", "aten::hypot"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_two_tensors(op: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, *data.draw(broadcastable(dtype)))
