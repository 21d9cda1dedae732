from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run, values
from hypothesis import strategies as st


@given(data=st.data(), dtype=st.sampled_from(FLOATS), shape=st.sampled_from([(), (3,), (2, 3), (0,), (2, 0)]),
       padding=st.sampled_from([-1, 0, 2]), by_frequency=st.booleans())  # fmt: skip
def test_embedding(
    data: Any, dtype: torch.dtype, shape: tuple[int, ...], padding: int, by_frequency: bool
) -> None:
    weight = data.draw(values((5, 4), dtype))
    indices = torch.randint(0, 5, shape)
    agree("aten::embedding", weight, indices, padding)
    gradient = data.draw(values((*shape, 4), dtype))
    agree("aten::embedding_dense_backward", gradient, indices, 5, padding, by_frequency)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_out_of_range_is_the_callers_error(index: int) -> None:
    with pytest.raises(IndexError, match="index out of range in self"):
        run("aten::embedding", torch.ones(5, 2), torch.tensor([0, index]))


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_rows_that_are_too_long_are_scaled_down(order: float) -> None:
    indices = torch.tensor([[3, 0], [3, 4]])
    ours = torch.randn(5, 4) * torch.tensor([[0.01], [9], [9], [9], [9]])
    theirs = ours.clone()
    run("aten::embedding_renorm_", ours, indices, 1.5, order)
    torch.ops.aten.embedding_renorm_(theirs, indices, 1.5, order)
    torch.testing.assert_close(ours, theirs)
