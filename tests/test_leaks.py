"""Nothing grows: device memory and the process's own, over training steps, sessions, threads and errors."""

from __future__ import annotations

import gc
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import flroute
from flroute import testing
from flroute.routing import expected
from flroute.vendor import Kernel, host_fallback
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


def step_and_fall_back(session: flroute.Session) -> None:
    step, x = training(), torch.ones(4, 4)
    for _ in range(3):
        step()
        torch.hypot(x, x)
        x[1:].t().copy_(x[1:].t().clone()).sum().item()
        torch.eye(3).to_sparse() @ torch.ones(3, 3)
    session.report().to_dict()


def change_and_nest(session: flroute.Session) -> None:
    x = torch.ones(4)
    x.exp()
    with session.change(deny=["reference/*"]):
        x.exp()
    with flroute.enable(DEVICE), session.profile(against_host=True, modules=True) as profile:
        x.exp()
    profile.to_dict()


def attach_a_thread(session: flroute.Session) -> None:
    def attached() -> None:
        with session.attach():
            torch.ones(4).exp()

    thread = threading.Thread(target=attached)
    thread.start()
    thread.join()


def raise_errors(session: flroute.Session) -> None:
    with pytest.raises(RuntimeError), session.change(fallback="error"):
        torch.hypot(torch.ones(2), torch.ones(3))
    with pytest.raises(flroute.FallbackError), session.change(fallback="error"):
        torch.hypot(torch.ones(2), torch.ones(2))


@pytest.fixture(scope="module")
def imports() -> None:
    """What the first calls import may have caught an error of its own, whose traceback holds those who called."""
    with flroute.enable(DEVICE, fallback="allow") as session:
        step_and_fall_back(session)


@pytest.fixture
def no_collections(imports: None) -> Iterator[None]:
    """As in training loops that turn the garbage collector off, or a process so large that it seldom looks at all of it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("work", [step_and_fall_back, change_and_nest, attach_a_thread, raise_errors])
@pytest.mark.parametrize(
    "setting", ["default_device", "timing", "modules", "debug", "trace", "alias", "captured"]
)
def test_a_session_that_nobody_holds_is_freed_at_once(
    setting: str, work: Callable[[flroute.Session], None], tmp_path: Path
) -> None:
    """Its routes, counters and decisions are no cycle that waits for the garbage collector, be it in hundreds of sessions."""
    settings: dict[str, Any] = {"fallback": "allow", "default_device": True}
    if setting != "captured":
        settings[setting] = {"trace": str(tmp_path / "trace.jsonl"), "alias": ("cuda",)}.get(setting, True)
    with testing.capture_decisions() if setting == "captured" else nullcontext():
        with flroute.enable(DEVICE, **settings) as session:
            work(session)
        router, log = weakref.ref(session.router), weakref.ref(session.router.log)
        del session
    assert router() is None
    assert log() is None


@pytest.mark.usefixtures("no_collections")
def test_routes_that_are_forgotten_are_freed_at_once(vendors: Vendors) -> None:
    def by_the_host(x: Any) -> Any:
        return host_fallback("aten::exp", x)

    made = vendors(Kernel("aten::mul.Tensor", lambda a, b: a * b), Kernel("aten::exp", by_the_host), COPY)
    x = made.put(torch.ones(4, device="cpu"))
    with flroute.enable(made.device, default_device=False, fallback="allow") as session:
        for _ in range(3):
            (x * x).exp().sin()
        routes = [
            weakref.ref(session.router.handler(op))
            for op in (torch.ops.aten.mul.Tensor, torch.ops.aten.exp.default, torch.ops.aten.sin.default)
        ]
        with session.change(precision="medium"):
            assert [route() for route in routes] == [None] * 3


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
