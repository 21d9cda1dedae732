from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, given, run
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import flroute
from flroute.vendor import Unsupported

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


@given(dtype=st.sampled_from(FLOATS), causal=st.booleans(), masked=st.booleans(), scale=st.sampled_from([None, 0.3]),
       shared=st.sampled_from([1, 2]), lengths=st.tuples(st.integers(1, 7), st.integers(1, 7)))  # fmt: skip
def test_attention(
    dtype: torch.dtype, causal: bool, masked: bool, scale: float | None, shared: int, lengths: tuple[int, int]
) -> None:
    rows, columns = lengths
    query = torch.randn(2, 2 * shared, rows, 8, dtype=dtype)
    key, value = torch.randn(2, 2, 2, columns, 8, dtype=dtype)
    mask = torch.randn(rows, columns, dtype=dtype) if masked and not causal else None
    options: dict[str, Any] = {"attn_mask": mask, "scale": scale}
    agree(FUSED, query, key, value, 0.0, causal, **options)
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, **options
    )
    rest = (query, key, value, output, logsumexp, 0.0, causal)
    agree(f"{FUSED}_backward", torch.randn_like(output), *rest, **options)


def test_a_row_that_sees_nothing() -> None:
    query, key, value = torch.randn(3, 1, 2, 4, 8)
    mask = torch.zeros(4, 4)
    mask[1] = -math.inf
    made = run(FUSED, query, key, value, attn_mask=mask)
    expected = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(torch.from_numpy(made[0]), expected)


def test_the_device_takes_the_kernel() -> None:
    query, key, value = (torch.randn(2, 3, 5, 8, device="fl:0", requires_grad=True) for _ in range(3))
    with flroute.enable(device="reference", fallback="error") as session:
        scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
    kernels = {d.kernel for d in session.decisions}
    assert {"reference/numpy:attention", "reference/numpy:attention_backward"} <= kernels


def test_dropout_is_never_fused() -> None:
    with pytest.raises(Unsupported):
        run(FUSED, *torch.randn(3, 1, 2, 4, 8), 0.5)
