"""Tensors that carry a device's value and a reference's by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flroute
from flroute.errors import ShadowError


def test_a_shadow_tensor_carries_both_values_forward_and_backward() -> None:
    x = flroute.ShadowTensor(torch.full((2, 2), 1 / 3, device="fl")).requires_grad_()
    y = (x @ x).exp().sum()
    y.backward()
    exact = torch.full((2, 2), 1 / 3).double().requires_grad_()
    (exact @ exact).exp().sum().backward()
    assert type(x.grad) is flroute.ShadowTensor
    torch.testing.assert_close(x.grad.reference, exact.grad, rtol=1e-14, atol=0)
    torch.testing.assert_close(x.grad.value.cpu(), exact.grad.float())
    assert 0 < y.difference.max_rel < 1e-6
    assert {"aten::mm", "aten::exp"} <= {row.op for row in y.report.rows()}


def test_an_optimizer_steps_on_shadow_tensors() -> None:
    start = torch.full((3,), 1 / 3)
    x = nn.Parameter(flroute.ShadowTensor(start.to("fl")))
    exact = nn.Parameter(start.double())
    for parameter in (x, exact):
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sin().sum().backward()
            optimizer.step()
    torch.testing.assert_close(x.data.reference, exact.data, rtol=1e-13, atol=0)


def test_shadow_tensors_of_two_records_do_not_meet() -> None:
    one, other = nn.Linear(2, 2).to("fl"), nn.Linear(2, 2).to("fl")
    with flroute.shadow(one):
        x = flroute.ShadowTensor(torch.ones(2, device="fl"))
    with flroute.shadow(other):
        y = flroute.ShadowTensor(torch.ones(2, device="fl"))
    with pytest.raises(ShadowError, match="two records"):
        x + y
    with pytest.raises(ShadowError, match="move it first"):
        flroute.ShadowTensor(torch.ones(2))
