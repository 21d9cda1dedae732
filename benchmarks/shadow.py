"""What a shadow costs: steps of training routed, in a shadow, and in one that looks at one step in a hundred.

    python benchmarks/shadow.py [--only MLP CNN]

The three take turns, step by step, so that what else the machine does meets all of them. A step in a shadow is held against six
times the routed step and the time that the reference itself takes; one of a shadow that samples, on average over steps that are
looked at and steps that are not, against 1.3 times the routed step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # numpy's BLAS reads it when it is loaded

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

import flroute

SAMPLE = 0.01
GOAL, GOAL_SAMPLED = 6.0, 1.3
TOGETHER, STEPS = 5, 600
"""Steps of one kind in a row; steps that are routed, and steps that are sampled, in all."""


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.project, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then a perceptron, each beside a shortcut."""
        query, key, value = (
            self.project(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(x)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """A perceptron and a batch."""
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(128, 256)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    """A small convolutional network and a batch."""
    layers = [
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers), torch.randn(16, 3, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Two blocks of attention and a batch."""
    layers = [Attention(128, 4), Attention(128, 4), nn.Flatten(1), nn.Linear(32 * 128, 10)]
    return nn.Sequential(*layers), torch.randn(8, 32, 128)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "MLP": mlp,
    "CNN": cnn,
    "transformer": transformer,
}


def stepper(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    labels = torch.arange(len(x), device="cpu").remainder(10).to(x.device)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None], times: int) -> list[float]:
    """How long each of so many steps takes."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found


class Row(NamedTuple):
    """Seconds of a step: medians, but for ``sampled``, which is a mean over many steps."""

    model: str
    routed: float
    shadowed: float
    reference: float
    routed_mean: float
    sampled: float

    @property
    def factor(self) -> float:
        """What a shadow costs beside the reference's own time, in routed steps."""
        return (self.shadowed - self.reference) / self.routed

    @property
    def factor_sampled(self) -> float:
        """What a shadow that samples costs, in routed steps."""
        return self.sampled / self.routed_mean


def measure(name: str, rounds: int) -> Row:
    """Steps of a model, by turns."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    there = x.to(flroute.device("reference"))
    step = stepper(model.to(there.device), there)
    routed, shadowed, reference, plain, sampled = [], [], [], [], []
    with flroute.enable("reference", default_device=False):
        seconds(step, 3)
        for round_ in range(rounds):
            routed += seconds(step, TOGETHER)
            with flroute.shadow(model) as s:
                seconds(step, 3)  # the first steps check what is checked once, and find most of what is worst
                before = s.reference_seconds
                shadowed += seconds(step, TOGETHER)
                reference.append((s.reference_seconds - before) / TOGETHER)
            plain += seconds(step, STEPS // rounds)
            with flroute.shadow(model, sample=SAMPLE, seed=round_):
                sampled += seconds(step, STEPS // rounds)
    return Row(
        name,
        statistics.median(routed),
        statistics.median(shadowed),
        statistics.median(reference),
        statistics.mean(plain),
        statistics.mean(sampled),
    )


def main() -> None:
    """Print a table; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=MODELS, nargs="*", default=list(MODELS))
    chosen = parser.parse_args()
    table = Table("model", "routed", "in a shadow", "of that the reference", f"factor (goal {GOAL})",
                  f"at sample={SAMPLE} (goal {GOAL_SAMPLED})")  # fmt: skip
    rows = [measure(name, chosen.rounds) for name in chosen.only]
    for row in rows:
        milliseconds = (f"{value * 1e3:.1f} ms" for value in (row.routed, row.shadowed, row.reference))
        table.add_row(row.model, *milliseconds, f"{row.factor:.1f}", f"{row.factor_sampled:.2f}")
    Console().print(table)
    sys.exit(any(row.factor > GOAL or row.factor_sampled > GOAL_SAMPLED for row in rows))


if __name__ == "__main__":
    main()
