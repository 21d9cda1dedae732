"""What routing costs: each case on ``fl`` against the same case on host tensors under a no-op dispatch mode.

Interleaved in one process, on one thread; medians of ratios. Run with ``make bench``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flroute
from flroute.benchmark.timing import compare

ROUNDS = 15


class NoOp(TorchDispatchMode):
    """The least a dispatch mode can do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def mlp_step(device: str) -> Callable[[], Any]:
    """A training step of a 3-layer perceptron on ``device``."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    ).to(device)
    x, y = torch.randn(64, 64).to(device), torch.randint(0, 10, (64,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    return step


def check_counts() -> None:
    """The decisions count exactly the calls made, and memory returns to its start."""
    x = torch.randn(4, 4).to("fl")
    before = torch.fl.memory_allocated()
    with flroute.enable(device="reference", default_device=False) as session:
        for _ in range(1000):
            x.add(x)
    calls = {d.op: d.calls for d in session.decisions}
    assert calls == {"aten::add.Tensor": 1000}, calls
    assert torch.fl.memory_allocated() == before


def main() -> None:
    """Print one row per case."""
    torch.set_num_threads(1)
    check_counts()
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    x, y = a.to("fl"), b.to("fl")
    steps = mlp_step("fl"), mlp_step("cpu")

    bare = partial(flroute.enable, device="reference", default_device=False)
    default = partial(flroute.enable, device="reference")
    cases = [
        ("add 4x4, default_device=False", lambda: x.add(y), lambda: a.add(b), 3000, bare, 1.8),
        ("add 4x4", lambda: x.add(y), lambda: a.add(b), 3000, default, 2.0),
        ("MLP step, default_device=False", *steps, 30, bare, 1.6),
        ("MLP step", *steps, 30, default, 1.8),
        ("view", lambda: x.view(16), lambda: a.view(16), 3000, bare, 2.0),
        ("transpose", x.t, a.t, 3000, bare, 2.0),
        ("slice", lambda: x[1:3], lambda: a[1:3], 3000, bare, 2.0),
    ]
    print(f"{'case':34}{'routed us':>12}{'no-op us':>12}{'ratio':>8}{'goal':>8}")
    for name, routed, baseline, calls, session, goal in cases:
        fl, host, ratio = compare(
            routed, baseline, calls, rounds=ROUNDS, session=session, around_baseline=NoOp
        )
        print(f"{name:34}{fl:12.2f}{host:12.2f}{ratio:8.2f}{goal:8.1f}")


if __name__ == "__main__":
    main()
