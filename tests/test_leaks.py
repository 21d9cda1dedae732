"""Nothing grows: device memory and the process's own, over training steps, sessions, threads and errors."""

from __future__ import annotations

import gc
import resource
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import flroute
from flroute.routing import expected
from flroute.vendor import Kernel
from support import COPY, Vendors, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)
DEVICE = flroute.device("reference")
_PAGE = resource.getpagesize()


def resident() -> int:
    """Bytes of this process's memory that are in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def grows(work: Callable[[], Any], warm_up: int, times: int) -> tuple[int, int]:
    """Bytes of the device's memory, and of the process's, that ``times`` calls of ``work`` leave behind."""
    for _ in range(warm_up):
        work()
    gc.collect()
    allocated, used = torch.fl.memory_allocated(DEVICE), resident()
    for _ in range(times):
        work()
    after = resident()
    return torch.fl.memory_allocated(DEVICE) - allocated, after - used


def training() -> Callable[[], Any]:
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.ones(4, 8, device="cpu").to(DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        net(x).pow(2).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("where", ["outside", "session", "timing", "modules"])
@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_training_steps(steps: int, where: str) -> None:
    settings = {} if where in ("outside", "session") else {where: True}
    with nullcontext() if where == "outside" else flroute.enable(DEVICE, default_device=False, **settings):
        on_device, in_process = grows(training(), 300, steps)
    assert on_device == 0
    assert in_process < 2**20 + 100 * steps, f"{in_process / steps:.0f} bytes a step"


def test_the_numbers_of_an_optimizers_step_are_not_remembered() -> None:
    step = training()
    with flroute.enable(DEVICE, default_device=False, modules=True):
        for _ in range(3):
            step()
        known = len(expected._known)
        for _ in range(5):
            step()
    assert len(expected._known) == known


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_sessions_and_threads(times: int) -> None:
    def work() -> None:
        with flroute.enable(DEVICE) as session:
            x = torch.ones(4, requires_grad=True)

            def attached() -> None:
                with session.attach():
                    (x.detach() * 2).exp()

            thread = threading.Thread(target=attached)
            thread.start()
            thread.join()
            (x * x).sum().backward()
            session.report().to_dict()

    on_device, in_process = grows(work, 50, times)
    assert on_device == 0
    assert in_process < 2**20 + 1000 * times, f"{in_process / times:.0f} bytes a session"


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_profiles(times: int) -> None:
    x = torch.ones(4, device=DEVICE)

    def work() -> None:
        with flroute.enable(DEVICE) as session, session.profile(modules=True, against_host=True) as profile:
            x.exp()
        profile.to_dict()

    on_device, in_process = grows(work, 20, times)
    assert on_device == 0
    assert in_process < 2**20 + 1000 * times, f"{in_process / times:.0f} bytes a profile"


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("times", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_errors_in_kernels(times: int, where: str, vendors: Vendors) -> None:
    def broken(x: Any) -> Any:
        raise ValueError("broken")

    made = vendors(Kernel("aten::exp", broken), Kernel("aten::mul.Tensor", lambda a, b: a * b), COPY)

    def work() -> None:
        x = made.put(torch.ones(64, device="cpu")).requires_grad_()
        with pytest.raises(ValueError, match="broken"):
            (x * x).exp()

    start = torch.fl.memory_allocated(made.device)
    with nullcontext() if where == "outside" else flroute.enable(made.device, default_device=False):
        _, in_process = grows(work, 100, times)
    assert torch.fl.memory_allocated(made.device) == start
    assert in_process < 2**20 + 500 * times, f"{in_process / times:.0f} bytes an error"


@pytest.mark.parametrize("times", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_fallbacks_that_are_refused(times: int) -> None:
    x = torch.ones(4, device=DEVICE)

    def work() -> None:
        with pytest.raises(flroute.FallbackError):
            torch.hypot(x, x)

    with flroute.enable(DEVICE, fallback="error", default_device=False):
        on_device, in_process = grows(work, 50, times)
    assert on_device == 0
    assert in_process < 2**20 + 500 * times, f"{in_process / times:.0f} bytes an error"


@pytest.mark.parametrize("times", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_shapes_that_never_repeat(times: int) -> None:
    """What is remembered of signatures has a bound: those of the warm-up are beyond it already, but for the largest."""
    sizes = iter(range(1, 100_000))

    def work() -> None:
        x = torch.ones(next(sizes) % 7000 + 1, device=DEVICE)
        (x + x).relu()

    with flroute.enable(DEVICE):
        on_device, in_process = grows(work, 7000 if times > 1000 else 600, times)
    assert on_device == 0
    assert in_process < 2**23 + 1500 * min(times, 4096), f"{in_process / times:.0f} bytes a shape"
