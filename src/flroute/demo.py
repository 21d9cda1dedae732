"""``flroute demo``: the same training run on the host and on a vendor's device, with every call accounted for.

A small CNN learns scikit-learn's digits (1,797 images of 8x8 pixels). Both runs start from the same weights and see
the same batches in the same order, so that what differs is the device alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy

import flroute
from flroute.report import Report

EPOCHS = 12
BATCH = 64
TEST_IMAGES = 450
LEARNING_RATE = 1e-2
LEAST_ACCURACY = 0.97
LARGEST_DIFFERENCE = 0.01


@dataclass(frozen=True)
class Digits:
    """The data on the host, split once and for all."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @property
    def batches_per_epoch(self) -> int:
        """How many batches the training images make."""
        return -(-len(self.train_labels) // BATCH)


@dataclass(frozen=True)
class Outcome:
    """How a training run ended.

    Attributes:
        accuracy: share of the test images recognised.
        seconds: wall time of the training steps.
    """

    accuracy: float
    seconds: float


def load_digits() -> Digits:
    """The digits as float32 images of shape (1, 8, 8) with values from 0 to 1.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn import datasets

    found = datasets.load_digits()
    images = torch.from_numpy(found.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:-TEST_IMAGES], order[-TEST_IMAGES:]
    return Digits(images[train], labels[train], images[test], labels[test])


def make_model(seed: int) -> nn.Module:
    """The network on the host, its weights drawn from ``seed``."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def batches(data: Digits, *, epochs: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels on the host, shuffled anew each epoch by a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(data.train_labels), generator=generator, device="cpu")
        for chosen in order.split(BATCH):
            yield data.train_images[chosen], data.train_labels[chosen]


def train(
    model: nn.Module, data: Digits, *, device: str, epochs: int, seed: int, after_step: Callable[[], object]
) -> Outcome:
    """Train ``model`` on ``device`` and test it: plain PyTorch, the same on every device.

    Args:
        model: moved to ``device``.
        data: the images, on the host.
        device: as ``Tensor.to`` takes it.
        epochs: how often every training image is seen.
        seed: decides the order of the images.
        after_step: called after each batch.
    """
    start = time.perf_counter()
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * data.batches_per_epoch)
    for images, labels in batches(data, epochs=epochs, seed=seed):
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        after_step()
    return Outcome(accuracy(model, data, device), time.perf_counter() - start)


def accuracy(model: nn.Module, data: Digits, device: str) -> float:
    """The share of the test images that ``model`` recognises."""
    model.eval()
    with torch.no_grad():
        guesses = model(data.test_images.to(device)).cpu().argmax(dim=1)
    return float((guesses == data.test_labels).double().mean())


@dataclass(frozen=True)
class Comparison:
    """Both runs, and what the session recorded about the second."""

    host: Outcome
    device: Outcome
    report: Report
    epochs: int

    def broken_promise(self) -> str | None:
        """What went wrong, in words, or ``None``: the device must learn as well as the host.

        The least accuracy is asked for from ``EPOCHS`` epochs on; fewer are not enough to reach it.
        """
        difference = abs(self.host.accuracy - self.device.accuracy)
        if difference > LARGEST_DIFFERENCE:
            return f"the accuracies differ by {difference:.2%}, more than {LARGEST_DIFFERENCE:.0%}"
        worst = min(self.host.accuracy, self.device.accuracy)
        if self.epochs >= EPOCHS and worst < LEAST_ACCURACY:
            return f"an accuracy of {worst:.2%} is under {LEAST_ACCURACY:.0%}"
        return None


def compare(*, device: str, fallback: str, epochs: int, seed: int, console: Console) -> Comparison:
    """Train on the host, then on ``device`` in a session, with a progress bar for each.

    Args:
        device: a vendor or device, as ``flroute.enable`` takes it.
        fallback: the session's fallback policy.
        epochs: of both runs.
        seed: of both runs.
        console: where the progress is shown.
    """
    session = flroute.enable(device=device, fallback=fallback, timing=True)  # a wrong device is told at once
    data = load_digits()
    steps = epochs * data.batches_per_epoch
    with _progress(console) as progress:
        task = progress.add_task("host", total=steps)
        host = train(
            make_model(seed), data, device="cpu", epochs=epochs, seed=seed,
            after_step=lambda: progress.advance(task),
        )  # fmt: skip
        task = progress.add_task(device, total=steps)
        model = make_model(seed)
        with session:
            on_device = train(
                model, data, device="fl", epochs=epochs, seed=seed, after_step=lambda: progress.advance(task)
            )
    return Comparison(host, on_device, session.report(), epochs)


def show(comparison: Comparison, console: Console) -> None:
    """Print the report, then both accuracies."""
    report = comparison.report
    console.print(report.sorted_by("seconds"))
    outcomes = Table("", box=None, pad_edge=False)
    outcomes.add_column("test accuracy", justify="right")
    outcomes.add_column("seconds", justify="right")
    outcomes.add_row("host", f"{comparison.host.accuracy:.2%}", f"{comparison.host.seconds:.1f}")
    outcomes.add_row(report.device, f"{comparison.device.accuracy:.2%}", f"{comparison.device.seconds:.1f}")
    console.print(outcomes)


def run(*, device: str, fallback: str, epochs: int, seed: int, decisions: Path, console: Console) -> bool:
    """The whole demo; ``True`` if the promise was kept.

    Args:
        device: as for ``compare``; so are ``fallback``, ``epochs`` and ``seed``.
        fallback: the session's fallback policy.
        epochs: of both runs.
        seed: of both runs.
        decisions: the file for every decision.
        console: where everything is shown.
    """
    comparison = compare(device=device, fallback=fallback, epochs=epochs, seed=seed, console=console)
    show(comparison, console)
    console.print(f"every decision is in {comparison.report.to_json(decisions)}", soft_wrap=True)
    problem = comparison.broken_promise()
    if problem:
        console.print(f"[bold red]failed:[/] {problem}")
    return problem is None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("training on {task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
    )
