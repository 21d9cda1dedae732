"""The ops of ``SyncBatchNorm``, put together as it does for two ranks, are batch normalization over both ranks' batches.

That it does so between processes is in ``distributed/test_wrappers.py``.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import flroute

EPS, MOMENTUM = 1e-3, 0.3


def of_two_ranks(
    batches: list[torch.Tensor], norm: torch.nn.modules.batchnorm._BatchNorm, device: torch.device
) -> tuple[list[torch.Tensor], ...]:
    """Outputs, gradients of inputs, and of weight and bias summed over ranks, of the output's sum of squares."""
    xs = [batch.to(device) for batch in batches]
    weight, bias = (None if p is None else p.detach().to(device) for p in (norm.weight, norm.bias))
    running = [b.clone().to(device) for b in (norm.running_mean, norm.running_var) if b is not None]
    own = [torch.batch_norm_stats(x, EPS) for x in xs]
    counts = torch.tensor([x.numel() // x.size(1) for x in xs], dtype=own[0][0].dtype, device=device)
    means, invstds = (torch.stack(each) for each in zip(*own, strict=True))
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        xs[0], means, invstds, *running, MOMENTUM, EPS, counts
    )
    outputs = [torch.batch_norm_elemt(x, weight, bias, mean, invstd, EPS) for x in xs]
    grads = [2 * output for output in outputs]
    reduced = [
        torch.batch_norm_backward_reduce(g, x, mean, invstd, weight, True, True, True)
        for g, x in zip(grads, xs, strict=True)
    ]
    sums = [sum(each[i] for each in reduced) for i in range(4)]
    inputs = [
        torch.batch_norm_backward_elemt(g, x, mean, invstd, weight, sums[0], sums[1], counts.int())
        for g, x in zip(grads, xs, strict=True)
    ]
    return outputs, inputs, sums[2:], running


@pytest.mark.parametrize("vendor", ["reference", "opaque"])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(2, 4), min_size=2, max_size=2),
    st.integers(1, 3),
    st.sampled_from([(), (5,), (2, 3)]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_two_ranks_are_one_batch(
    vendor: str, sizes: list[int], channels: int, rest: tuple[int, ...], affine: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(channels, eps=EPS, momentum=MOMENTUM, affine=affine)
    norm._check_input_dim = lambda _: None  # any number of dimensions
    norm = norm.double()
    if affine:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias)
    batches = [(torch.randn(n, channels, *rest) + i).to(dtype) for i, n in enumerate(sizes)]
    norm.weight, norm.bias = (
        None if p is None else torch.nn.Parameter(p.to(dtype).double()) for p in (norm.weight, norm.bias)
    )
    device = flroute.device(f"{vendor}:0")
    with flroute.enable(device, fallback="allow", default_device=False) as session:
        found = of_two_ranks(batches, norm, device)
    assert {d.route for d in session.decisions if d.op.startswith("aten::batch_norm_")} == {"decomposed"}
    whole = torch.cat(batches).double().requires_grad_()
    expected = norm(whole)
    expected.square().sum().backward()
    if dtype == torch.bfloat16:
        close = {"rtol": 0.05, "atol": 0.05 * float(whole.grad.abs().max() + 1)}
    else:
        close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-7}
    outputs, inputs, gradients, running = found
    assert all(output.dtype == dtype for output in (*outputs, *inputs))
    assert_close(torch.cat(outputs).cpu().double(), expected, **close)
    assert_close(torch.cat(inputs).cpu().double(), whole.grad, **close)
    for ours, theirs in zip(running, (norm.running_mean, norm.running_var), strict=True):
        assert_close(ours.cpu().double(), theirs, **close)
    if affine:
        close["atol"] *= whole.numel()
        for ours, theirs in zip(gradients, (norm.weight, norm.bias), strict=True):
            assert_close(ours.cpu().double(), theirs.grad, **close)


def test_ranks_that_have_as_many_elements() -> None:
    means, invstds = torch.rand(2, 3, device="fl"), torch.rand(2, 3, device="fl")
    x = torch.ones(4, 3, device="fl")
    counts = torch.full((2,), 4.0, device="fl")
    same = torch.batch_norm_gather_stats_with_counts(x, means, invstds, None, None, MOMENTUM, EPS, counts)
    for ours, theirs in zip(
        torch.batch_norm_gather_stats(x, means, invstds, None, None, MOMENTUM, EPS, 4), same, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_layout_is_kept() -> None:
    x = torch.randn(2, 3, 4, 4, device="fl").to(memory_format=torch.channels_last)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    assert torch.batch_norm_elemt(x, None, None, mean, invstd, EPS).stride() == x.stride()
