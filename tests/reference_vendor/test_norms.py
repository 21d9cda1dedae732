from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import COMPLEX, FLOATS, FULL_SHAPES, INTEGERS, agree, given, run, values
from hypothesis import strategies as st

from flroute.vendor import Unsupported

DTYPES = st.sampled_from([*FLOATS, *COMPLEX])
ORDERS = [0, 0.5, 1, 1.5, 2, 3, float("inf"), -float("inf"), -1]


@given(data=st.data(), dtype=DTYPES, p=st.sampled_from(ORDERS), keepdim=st.booleans())
def test_vector_norms(data: Any, dtype: torch.dtype, p: float, keepdim: bool) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES), dtype, special=True))
    dims = data.draw(st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim))
    agree("aten::linalg_vector_norm", x, p, dims or None, keepdim)
    agree("aten::norm.ScalarOpt_dim", x, p, dims, keepdim)
    agree("aten::norm.Scalar", x, p)
    if not dtype.is_complex:
        agree("aten::linalg_vector_norm", x, p, None, keepdim, dtype=torch.float64)


def test_the_largest_of_nothing_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::linalg_vector_norm", torch.zeros(2, 0), float("inf"), [1])
    agree("aten::linalg_vector_norm", torch.zeros(2, 0), 2, [1])


@given(data=st.data(), dtype=DTYPES, p=st.sampled_from([0.5, 1, 2, 3, float("inf")]))
def test_renorm(data: Any, dtype: torch.dtype, p: float) -> None:
    x = data.draw(values(data.draw(FULL_SHAPES.filter(lambda s: len(s) > 1)), dtype))
    agree("aten::renorm", x, p, data.draw(st.integers(-x.ndim, x.ndim - 1)), 1.5)


@given(data=st.data(), dtype=st.sampled_from([*FLOATS, *COMPLEX, *INTEGERS]))
def test_trace(data: Any, dtype: torch.dtype) -> None:
    agree("aten::trace", data.draw(values(data.draw(st.tuples(*[st.integers(0, 5)] * 2)), dtype)))


@given(data=st.data(), dtype=st.sampled_from([*FLOATS, *COMPLEX, torch.int32, torch.int64]))
def test_cross_product(data: Any, dtype: torch.dtype) -> None:
    x, y = data.draw(values((2, 3, 3), dtype)), data.draw(values((1, 3, 3), dtype))
    agree("aten::linalg_cross", x, y, dim=data.draw(st.sampled_from([-1, 1])))
    with pytest.raises(Unsupported):
        run("aten::linalg_cross", x, y, dim=0)


@given(data=st.data(), dtype=DTYPES, size=st.integers(0, 4), scale=st.sampled_from([1e-3, 0.1, 0.4]))
def test_matrix_exponential(data: Any, dtype: torch.dtype, size: int, scale: float) -> None:
    # The condition grows with the norm, so that a tolerance means something only while it is small.
    x = data.draw(values((3, size, size), dtype))
    agree("aten::linalg_matrix_exp", x * scale * torch.tensor([0.0, 0.1, 1.0], dtype=dtype)[:, None, None])
