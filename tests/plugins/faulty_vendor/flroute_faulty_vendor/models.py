"""Small programs in which every fault shows: a perceptron, a residual network and a transformer, each with its optimizer.

``outcome(name, device)`` trains one for three steps and evaluates it; ``run`` does the same for a model that is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS, STEPS = 5, 24, 3


class Perceptron(nn.Module):
    """Layers of several kinds, and two buffers that training moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(12, 16), nn.LayerNorm(16)
        self.second, self.last = nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.row = nn.Parameter(torch.randn(16) / 4)
        self.register_buffer("centre", torch.zeros(16))
        self.register_buffer("kept", torch.zeros(8, 16))

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = functional.gelu(self.norm(0.05 * self.first(x)))
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(h.mean(0), 0.25)
                self.kept.copy_(h).clamp_(-0.1, 1)
        h = h - self.centre / 2 + self.kept / 4
        h = functional.silu(self.second(h) + self.row)
        h = h / (h.var(-1, keepdim=True) + 0.1).sqrt()
        logits = self.last(h)
        return functional.cross_entropy(logits, labels, ignore_index=-100), logits


class ResidualNetwork(nn.Module):
    """A stem, a block around a shortcut, and two kinds of pooling side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pools = nn.ModuleList([nn.MaxPool2d(3, 2, padding=1), nn.AvgPool2d(3, 2, padding=1)])
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(x + 1)
        h = torch.cat([pool(h) for pool in self.pools], 1)
        logits = self.head(torch.relu(self.block(h) + h))
        return functional.cross_entropy(logits, labels), logits


class Block(nn.Module):
    """Attention in one stroke or spelled out, then a gated perceptron, each after its normalization."""

    def __init__(self, width: int, *, spelled_out: bool) -> None:
        super().__init__()
        self.spelled_out = spelled_out
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.norm, self.scale = nn.LayerNorm(width), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.project(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        key = torch.cat([-key[..., 4:], key[..., :4]], -1)
        if self.spelled_out:
            weights = 4 * query @ key.mT
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            seen = torch.softmax(weights.masked_fill(hidden, -1e4), -1) @ value
        else:
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(functional.silu(3 * self.gate(h)) * torch.tanh(self.up(h)))


class Transformer(nn.Module):
    """Two blocks between words and their likely followers; gradients are clipped by their norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.blocks = nn.Sequential(Block(16, spelled_out=False), Block(16, spelled_out=True))

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.blocks(self.words(x)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1), logits


@dataclass(frozen=True)
class Program:
    """A model, its batch, and its optimizer; model and batch draw from the generator as it stands."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    clip: float | None = None


def _vectors() -> dict[str, Tensor]:
    labels = torch.randint(0, CLASSES, (8,))
    labels[1::4] = -100
    return {"x": torch.randn(8, 12), "labels": labels}


def _images() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 3, 12, 12), "labels": torch.randint(0, CLASSES, (4,))}


def _sentences() -> dict[str, Tensor]:
    words = torch.randint(0, WORDS, (3, 8))
    words[:, 2], words[1, 5] = WORDS - 1, 3
    return {"x": words[:, :-1].clone(), "labels": words[:, 1:].clone()}


PROGRAMS: dict[str, Program] = {
    "MLP": Program(Perceptron, _vectors, lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4)),
    "ResNet": Program(
        ResidualNetwork, _images, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2)
    ),
    "transformer": Program(
        Transformer, _sentences, lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, fused=True), clip=0.5
    ),
}


def made(name: str, seed: int = 0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and its batch on the host: the same ones for the same seed."""
    torch.manual_seed(seed)
    program = PROGRAMS[name]
    with torch.device("cpu"):
        return program.model(), program.inputs()


def outcome(name: str, device: str | torch.device = "cpu") -> dict[str, float]:
    """What ``run`` says of a new model on a device."""
    model, inputs = made(name)
    return run(name, model.to(device), {key: tensor.to(device) for key, tensor in inputs.items()})


def run(name: str, model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, float]:
    """Train for ``STEPS`` steps and evaluate: loss, gradient norm of the last step, and a sum over all logits that tells them apart."""
    program = PROGRAMS[name]
    parameters = list(model.parameters())
    optimizer = program.optimizer(parameters)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model.train()(**inputs)
        loss.backward()
        if program.clip is not None:
            nn.utils.clip_grad_norm_(parameters, program.clip)
        optimizer.step()
    norms = [p.grad.cpu().double().square().sum() for p in parameters if p.grad is not None]
    with torch.no_grad():
        logits = model.eval()(**inputs)[1].cpu().double().flatten()
    weights = torch.arange(len(logits), device="cpu", dtype=torch.float64).cos()
    return {
        "loss": float(loss.detach()),
        "gradient norm": float(torch.stack(norms).sum().sqrt()),
        "checksum": float((logits * weights).sum()),
    }
