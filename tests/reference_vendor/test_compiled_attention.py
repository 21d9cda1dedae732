"""Attention a block of queries at a time: judged against the host and float64, as the other compiled kernels are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import check

import flroute
from flroute.reference_vendor.compiled.sizes import FEWEST_SCORES
from support import decision_of, needs_triton

needs_triton()

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def heads(
    batch: int, count: int, length: int, size: int, dtype: torch.dtype, *, by_position: bool
) -> torch.Tensor:
    if by_position:
        return torch.randn(batch, length, count, size, dtype=dtype).transpose(1, 2)
    return torch.randn(batch, count, length, size, dtype=dtype)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.sampled_from([(182, 182), (700, 300), (64, 1100), (1100, 64), (2, 16500)]),
    shared=st.sampled_from([1, 2]),
    causal=st.booleans(),
    masked=st.booleans(),
    by_position=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_forward_and_backward(
    lengths: tuple[int, int], shared: int, causal: bool, masked: bool, by_position: bool, dtype: torch.dtype,
    scale: float | None, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    queries, keys = lengths
    if keys > 2000:  # sums so long differ from one order to another by more than float64's judge allows
        dtype = torch.float32
    query = heads(2, 2 * shared, queries, 8, dtype, by_position=by_position)
    key, value = (heads(2, 2, keys, 8, dtype, by_position=by_position) for _ in range(2))
    mask = torch.randn(queries, keys, dtype=dtype) if masked and not causal else None
    given_mask = [] if mask is None else [mask]

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: torch.Tensor) -> object:
        return FUSED(query, key, value, 0.0, causal, attn_mask=mask[0] if mask else None, scale=scale)

    check(forward, query, key, value, *given_mask)
    output, logsumexp = FUSED(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)

    def backward(*tensors: torch.Tensor) -> object:
        return BACKWARD(
            *tensors[:6], 0.0, causal, attn_mask=tensors[6] if masked and not causal else None, scale=scale
        )

    # The worst of the elements of a product is another one in another BLAS, and three products follow each other here.
    check(backward, torch.randn_like(output), query, key, value, output, logsumexp, *given_mask, times=3)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    query, key, value = torch.randn(3, 1, 2, 200, 8)
    mask = torch.zeros(200, 200)
    mask[7] = -math.inf
    check(lambda q, k, v, m: FUSED(q, k, v, attn_mask=m), query, key, value, mask)


def test_few_scores_are_left_to_numpy_which_does_all_heads_at_once() -> None:
    side = math.isqrt(FEWEST_SCORES)
    for length, kernel in ((side, "reference/numpy:attention"), (side + 1, "reference/triton:attention")):
        x = torch.randn(1, 2, length, 8, device="fl")
        with flroute.enable("reference", fallback="error", default_device=False) as session:
            FUSED(x, x, x)
        assert decision_of(session, FUSED.default.name()).kernel == kernel


@pytest.mark.parametrize("scale", [0.0, -1.5])
def test_the_scale_may_be_any_number(scale: float) -> None:
    query, key, value = (heads(1, 2, n, 16, torch.float32, by_position=False) for n in (256, 300, 300))
    check(lambda q, k, v: FUSED(q, k, v, 0.0, False, scale=scale), query, key, value)
