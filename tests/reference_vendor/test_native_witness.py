"""Native is witnessed, not declared: models train on the device although the host has lost its kernels for what they compute.

First a model trains as always, and the ops that were native are noted. Then PyTorch's own kernels for the host of these very
ops are replaced by ones that raise, and the model trains again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from model_zoo import FAMILIES, Inputs, made, moved, outcome, sow
from torch import nn

import flroute
from support import WithoutKernels

ALLOCATIONS = {"aten::empty.memory_format", "aten::empty_strided", "aten::empty_like"}
BETWEEN_DEVICES = {"aten::copy_"}
RANDOM = {"aten::bernoulli_.float"}  # the host's numbers on purpose, as the kernel's name says
THE_HOST_KEEPS = ALLOCATIONS | BETWEEN_DEVICES | RANDOM
ALWAYS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution_overrideable", "aten::mkldnn_convolution",
    "aten::_slow_conv2d_forward", "aten::_softmax", "aten::_log_softmax", "aten::add.Tensor", "aten::add_.Tensor", "aten::mul.Tensor",
    "aten::mul_.Tensor", "aten::div.Tensor", "aten::sub.Tensor", "aten::native_layer_norm", "aten::native_batch_norm", "aten::embedding",
    "aten::gelu", "aten::relu", "aten::tanh", "aten::sum", "aten::sum.dim_IntList", "aten::mean", "aten::mean.dim", "aten::nll_loss_forward",
)  # fmt: skip
"""Ops that the host loses in any case, whether a model's run on the device shows them or not."""

pytestmark = pytest.mark.filterwarnings(
    "ignore:Warning only once for all operators"
)  # PyTorch warns of the overriding


class HostWasAskedError(Exception):
    pass


@contextmanager
def host_without(ops: Iterable[str]) -> Iterator[None]:
    """The host's kernels of these ops raise."""
    library = torch.library.Library("aten", "IMPL")
    for op in ops:

        def refuse(*_: object, asked: str = op, **__: object) -> None:
            raise HostWasAskedError(asked)

        library.impl(op.removeprefix("aten::"), refuse, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def train(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The losses of two steps. AdamW counts its steps on the device if it is to be capturable, else on the host."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4, foreach=True, capturable=True)
    losses = []
    for seed in range(2):
        sow(seed)
        optimizer.zero_grad()
        loss, _ = outcome(model, inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_without_the_hosts_kernels(family: str) -> None:
    model, inputs = made(family)
    there = moved(inputs, "fl")
    models = [copy.deepcopy(model).to("fl") for _ in range(2)]
    with flroute.enable(device="reference", fallback="error", default_device=False) as session:
        expected = train(models[0], there)
    native = {d.op for d in session.decisions if d.route == "native"}
    with host_without({*native, *ALWAYS} - THE_HOST_KEEPS):
        with flroute.enable(device="reference", fallback="error", default_device=False):
            losses = train(models[1], there)
        with pytest.raises(HostWasAskedError):
            train(model, inputs)
    assert [x.item() for x in losses] == [x.item() for x in expected]


def test_a_hidden_fallback_would_be_seen(without_kernels: WithoutKernels) -> None:
    """The guard bites on the device, too."""
    without_kernels("aten::mm")
    x = torch.ones(2, 2, device="fl")
    with (
        flroute.enable(device="reference", fallback="allow", default_device=False),
        host_without(["aten::mm"]),
    ):
        with pytest.raises(HostWasAskedError, match="aten::mm"):
            torch.mm(x, x)
        assert (x + x).sum().item() == 8
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).sum() == 8
