from __future__ import annotations

import pytest
import torch
from against_host import overload, run
from torch import nn

import flroute

RANGES = [(-128, 127), (0, 255), (0, 15)]


def agree(op: str, *args: object) -> None:
    """To the last bit: what is off by one step is off by far."""
    for made, expected in zip(run(op, *args), overload(op)(*args), strict=True):
        torch.testing.assert_close(torch.from_numpy(made), expected, rtol=0, atol=0, equal_nan=True)


def numbers() -> torch.Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 30
    x[0, :3] = torch.tensor([0.0, -0.0, 2.5])
    return x


@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("scale", [0.1, 0.5, 3.0])
def test_by_one_scale(scale: float, low: int, high: int) -> None:
    zero = (low + high + 1) // 2
    for x in (numbers(), numbers().double(), numbers().t(), torch.empty(0)):
        agree("aten::fake_quantize_per_tensor_affine_cachemask", x, scale, zero, low, high)
    for enabled in (0, 1):
        agree(
            "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            numbers(), torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), torch.tensor([enabled]), low, high,
        )  # fmt: skip


@pytest.mark.parametrize(("low", "high"), RANGES)
@pytest.mark.parametrize("axis", [0, 1])
def test_by_a_scale_for_each_channel(axis: int, low: int, high: int) -> None:
    count = numbers().shape[axis]
    scales = torch.linspace(0.1, 2.0, count)
    zeros = torch.arange(count, dtype=torch.int32) % (high - low) + low
    agree("aten::fake_quantize_per_channel_affine_cachemask", numbers(), scales, zeros, axis, low, high)


def test_training_with_it_needs_no_fallback() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    gradients = []
    for device in ("cpu", "fl"):
        weight = model.weight.detach().to(device).requires_grad_()
        with flroute.enable("reference", fallback="error", default_device=False):
            quantized = torch.fake_quantize_per_channel_affine(
                weight,
                torch.full((4,), 0.02, device=device),
                torch.zeros(4, dtype=torch.int32, device=device),
                0,
                -8,
                7,
            )
            inputs = torch.fake_quantize_per_tensor_affine(x.to(device), 0.1, 0, -128, 127)
            (inputs @ quantized.t()).square().sum().backward()
        assert weight.grad is not None
        gradients.append(weight.grad.cpu())
    assert (gradients[0] == 0).any(), "what was clamped has no gradient"
    torch.testing.assert_close(*gradients)


def test_a_zero_point_outside_of_the_range_is_refused_as_on_the_host() -> None:
    x = numbers().to("fl")
    with (
        flroute.enable("reference", fallback="error", default_device=False),
        pytest.raises(RuntimeError, match="zero_point"),
    ):
        torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255)
