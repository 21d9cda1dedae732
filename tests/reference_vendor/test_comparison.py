from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, FULL_SHAPES, INTEGERS, SHAPES, agree, broadcastable, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
DTYPES = st.sampled_from([*FLOATS, *INTEGERS, torch.bool])


@pytest.mark.parametrize("name", COMPARISONS)
@given(data=st.data(), dtype=DTYPES)
def test_two_tensors(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(f"aten::{name}.Tensor", *data.draw(broadcastable(dtype)))


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("scalar", [0, 1.5, float("nan"), float("inf")])
def test_a_tensor_and_a_number(name: str, scalar: float) -> None:
    agree(f"aten::{name}.Scalar", torch.tensor([0.0, 1.5, float("nan"), float("inf"), -1]), scalar)
    agree(f"aten::{name}.Scalar", torch.arange(3), 1)


@pytest.mark.parametrize("scalar", [300, 1j])
def test_numbers_that_do_not_fit_are_left_to_the_host(scalar: object) -> None:
    with pytest.raises(Unsupported):
        run("aten::lt.Scalar", torch.ones(2, dtype=torch.int8), scalar)


@pytest.mark.parametrize("scalar", [0.5, True])
def test_numbers_of_another_kind_promote(scalar: float) -> None:
    agree("aten::lt.Scalar", torch.arange(-1, 3, dtype=torch.int8), scalar)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@given(data=st.data(), dtype=DTYPES)
def test_logic(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype))
    agree(f"aten::{name}", x, y)
    agree("aten::logical_not", x)


@given(data=st.data(), dtype=st.sampled_from([torch.bool, *INTEGERS]))
def test_bits(data: st.DataObject, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype))
    agree("aten::bitwise_and.Tensor", x, y)
    agree("aten::bitwise_or.Tensor", x, y)
    agree("aten::bitwise_xor.Tensor", x, y)
    agree("aten::bitwise_not", x)


@pytest.mark.parametrize("name", ["isnan", "isinf"])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_tests_of_floats(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", data.draw(values(data.draw(SHAPES), dtype, special=True)))


@given(data=st.data(), dtype=DTYPES)
def test_where(data: st.DataObject, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype))
    condition = data.draw(values(data.draw(st.sampled_from([x.shape, y.shape, ()])), torch.bool))
    agree("aten::where.self", condition, x, y)


@given(data=st.data(), dtype=DTYPES, keepdim=st.booleans())
def test_hash_of_all_bits(data: st.DataObject, dtype: torch.dtype, keepdim: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype))
    dims = data.draw(st.lists(st.integers(-max(x.ndim, 1), x.ndim - 1), max_size=1)) if x.ndim else []
    agree("aten::hash_tensor", x, dims, keepdim=keepdim)
