"""Bags of embeddings on the device against the host, forward and backward; what else the ops return differs by device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import FLOATS, given
from hypothesis import strategies as st
from torch.nn import functional

import flroute


def _both(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    samples: torch.Tensor | None,
    **options: Any,
) -> None:
    results = []
    for device in ("cpu", "fl:0"):
        table = weight.detach().to(device).requires_grad_()
        own = None if samples is None else samples.detach().to(device).requires_grad_()
        output = functional.embedding_bag(
            indices.to(device), table, offsets.to(device), per_sample_weights=own, **options
        )
        (
            output * torch.linspace(1, 2, output.numel(), dtype=output.dtype).reshape(output.shape).to(device)
        ).sum().backward()
        results.append([t.detach().cpu() for t in (output, table.grad, *([] if own is None else [own.grad]))])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs)


@given(data=st.data(), mode=st.sampled_from(["sum", "mean", "max"]), dtype=st.sampled_from(FLOATS),
       index=st.sampled_from([torch.int64, torch.int32]), padding=st.sampled_from([None, 2]),
       last=st.booleans(), weighted=st.booleans())  # fmt: skip
def test_embedding_bag(
    data: Any,
    mode: str,
    dtype: torch.dtype,
    index: torch.dtype,
    padding: int | None,
    last: bool,
    weighted: bool,
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    torch.manual_seed(sum(sizes))
    indices = torch.randint(0, 6, (sum(sizes),), dtype=index)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0)])[: None if last else -1].to(index)
    samples = torch.randn(len(indices), dtype=dtype) if weighted and mode == "sum" else None
    with flroute.enable(device="reference", fallback="error", default_device=False):
        _both(torch.randn(6, 3, dtype=dtype), indices, offsets, samples, mode=mode, padding_idx=padding,
              include_last_offset=last)  # fmt: skip


def test_without_gradients() -> None:
    weight, indices, offsets = torch.randn(6, 3), torch.tensor([1, 5, 2]), torch.tensor([0, 2])
    expected = functional.embedding_bag(indices, weight, offsets)
    with torch.no_grad(), flroute.enable(device="reference", fallback="error"):
        made = functional.embedding_bag(indices.to("fl"), weight.to("fl"), offsets.to("fl"))
    torch.testing.assert_close(made.cpu(), expected)


def test_an_index_out_of_range_is_refused_as_on_the_host() -> None:
    with pytest.raises(RuntimeError, match="7"):
        functional.embedding_bag(
            torch.tensor([7], device="fl:0"),
            torch.ones(3, 2, device="fl:0"),
            torch.tensor([0], device="fl:0"),
        )
