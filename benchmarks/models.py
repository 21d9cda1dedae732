"""Training steps of two small models, on the host or on ``fl``."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from flroute.benchmark.timing import Work


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., https://arxiv.org/abs/1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shortcut and what two convolutions add to it."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    """Six blocks at three widths."""
    blocks = [
        Block(32, 32, 1),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 64, 1),
        Block(64, 128, 2),
        Block(128, 128, 1),
    ]
    stem = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def resnet_step(device: str) -> Work:
    """SGD with momentum on four images of 64x64."""
    torch.manual_seed(0)
    model = resnet().to(device)
    images, labels = torch.randn(4, 3, 64, 64).to(device), torch.randint(0, 10, (4,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def gpt2_step(device: str) -> Work:
    """AdamW on one sequence of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel  # takes seconds: only where it is asked for

    torch.manual_seed(0)
    config = GPT2Config(n_layer=6, n_embd=256, n_head=8, n_positions=128, vocab_size=1000)
    model = GPT2LMHeadModel(config).to(device)
    tokens = torch.randint(0, 1000, (1, 128)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step
