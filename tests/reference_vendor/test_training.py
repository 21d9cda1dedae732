"""A small model trains on the device without a single fallback, to the same losses as on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import flroute


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1, groups=2), nn.LeakyReLU(), nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16), nn.Tanh(),
        nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 10),
    )  # fmt: skip


def _losses(
    make: Callable[[], nn.Module], optimizer: Any, options: dict[str, Any], device: str
) -> list[float]:
    torch.manual_seed(0)
    model, images, labels = make(), torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
    model, images, labels = model.to(device), images.to(device), labels.to(device)
    step = optimizer(model.parameters(), **options)
    losses = []
    on_device = (
        flroute.enable(device="reference", fallback="error") if device != "cpu" else contextlib.nullcontext()
    )
    with on_device:
        for _ in range(3):
            step.zero_grad()
            output = model(images)
            loss = functional.cross_entropy(output, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.step()
            losses.append(loss.item())
            assert 0 <= (output.argmax(1) == labels).float().mean().item() <= 1
    return losses


@pytest.mark.parametrize("make", [_convolutional, _perceptron])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"lr": 0.01}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "foreach": False}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ],
)
def test_no_fallback_and_the_same_losses(
    make: Callable[[], nn.Module], optimizer: Any, options: dict[str, Any]
) -> None:
    expected = _losses(make, optimizer, options, "cpu")
    assert _losses(make, optimizer, options, "fl:0") == pytest.approx(expected, rel=1e-4)
