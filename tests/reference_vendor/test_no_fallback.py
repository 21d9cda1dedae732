"""In a session that forbids fallback, what models use of these families runs forward and backward, on numpy kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import flroute

Function = Callable[[torch.Tensor], torch.Tensor]

TARGET = torch.tensor([1, 0, 2, 4])
COUNTS = torch.arange(5)
ROWS = torch.tensor([[1, 0, -1, 0, 0]] * 4)
FUNCTIONS: dict[str, Function] = {
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "glu": lambda x: functional.glu(x, 0),
    "elu": functional.elu,
    "celu": functional.celu,
    "selu": functional.selu,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "hardshrink": functional.hardshrink,
    "softshrink": functional.softshrink,
    "logsigmoid": functional.logsigmoid,
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.2, device=x.device)),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "huber": lambda x: functional.huber_loss(x, x.detach().flip(0)),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, x.detach().flip(0)),
    "multi margin": lambda x: functional.multi_margin_loss(x, TARGET.to(x.device)),
    "multilabel margin": lambda x: functional.multilabel_margin_loss(x, ROWS.to(x.device)),
    "binary cross entropy with logits": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "kl divergence": lambda x: functional.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
    "ctc": lambda x: functional.ctc_loss(x.log_softmax(1), TARGET[:2].to(x.device) + 1, [4], [2]),
    "erf": torch.erf,
    "erfinv": lambda x: torch.erfinv(torch.tanh(x)),
    "trigonometry": lambda x: torch.atan2(x.tan(), x.cosh()) + x.atan().sinh() + torch.hypot(x, x + 1),
    "logarithms": lambda x: torch.logaddexp(x, 2 * x) + torch.log2(x.square() + 1) + torch.exp2(x),
    "rounding": lambda x: x.frac() + torch.remainder(x, 0.7) + torch.fmod(x, 0.7) + torch.trunc(x),
    "gamma": lambda x: torch.lgamma(x.square() + 1) + torch.digamma(x.square() + 1),
    "bessel": lambda x: torch.special.i0e(x) + torch.special.i1(x),
    "integers": lambda x: x * COUNTS.to(x.device) / (COUNTS.to(x.device) // 2 + 1),
    "mixed": lambda x: torch.where(x > 0, x, torch.zeros((), dtype=torch.float64, device=x.device)) * (x > 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward(name: str) -> None:
    function = FUNCTIONS[name]
    start = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    on_host = start.clone().requires_grad_()
    torch.manual_seed(5)
    expected = function(on_host)
    expected.square().sum().backward()
    with flroute.enable(device="reference", fallback="error"):
        on_device = start.to("fl").requires_grad_()
        torch.manual_seed(5)
        made = function(on_device)
        made.square().sum().backward()
    torch.testing.assert_close(made.cpu(), expected)
    assert on_device.grad is not None
    torch.testing.assert_close(on_device.grad.cpu(), on_host.grad)
