"""Batch normalization of half precision beside weights and statistics in float32, as autocast leaves it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import flroute


@given(
    shape=st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    affine=st.booleans(),
    training=st.booleans(),
)
@settings(max_examples=8)
def test_it_is_the_hosts_of_the_same_values_in_float64(
    shape: tuple[int, ...], dtype: torch.dtype, affine: bool, training: bool
) -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm2d(shape[1], affine=affine).train(training)
    x, gradient = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    expected_model = copy.deepcopy(model).double()
    wide = x.double().requires_grad_()
    expected = expected_model(wide)
    expected.backward(gradient.double())
    with flroute.enable(fallback="error", default_device=False) as session:
        model.to("fl")
        narrow = x.to("fl").requires_grad_()
        result = model(narrow)
        result.backward(gradient.to("fl"))
        kernels = {d.kernel for d in session.decisions if "batch_norm" in d.op and d.kernel}
    ours = {"reference/numpy:batch_norm_mixed", "reference/numpy:batch_norm_backward_mixed"}
    assert kernels == ours or not affine  # without weights the running statistics are float32 all the same
    assert result.dtype is dtype
    rounding = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    torch.testing.assert_close(result.detach().cpu().double(), expected.detach(), **rounding)
    assert narrow.grad is not None
    scale = float(wide.grad.abs().max()) + 1  # type: ignore[union-attr]
    torch.testing.assert_close(narrow.grad.cpu().double() / scale, wide.grad / scale, **rounding)  # type: ignore[operator]
    torch.testing.assert_close(
        model.running_var.cpu().double(), expected_model.running_var, rtol=1e-5, atol=1e-5
    )
    for parameter, other in zip(model.parameters(), expected_model.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype is torch.float32
        torch.testing.assert_close(parameter.grad.cpu().double(), other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_another_dtype_are_left_to_the_host(dtype: torch.dtype) -> None:
    with flroute.enable(fallback="error", default_device=False):
        model = nn.BatchNorm1d(2).to("fl", dtype)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 2, dtype=torch.float16).to("fl"))
