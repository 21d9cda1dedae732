"""Backward passes on the device: hooks, second derivatives, and errors in the middle of one.

The last are what a device in pure Python gets wrong most easily: PyTorch ends the process where an error leaves a dispatch
mode inside the autograd engine. Whatever raises, the caller gets that very error, and ``.grad`` is what the host leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flroute
from flroute.vendor import Kernel
from support import COPY, Vendors, throw_away_vendors

aten = torch.ops.aten


class Boom(Exception):
    """Not an error that anything in between could know."""


class Fuse:
    """Raises ``error`` when the kernel runs and the fuse is lit."""

    error: BaseException | None = None


def matrix_product(a: Any, b: Any) -> Any:
    """A kernel with a fault that can be switched on."""
    if Fuse.error is not None:
        raise Fuse.error
    return np.matmul(a, b)


def multiply(a: Any, b: Any) -> Any:
    return np.multiply(a, b)


def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return np.add(a, np.multiply(b, np.float32(alpha)))


REFERENCE, SECOND, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:1"),
)

faulty = pytest.fixture(throw_away_vendors, name="faulty_vendors")


@pytest.fixture
def faulty_devices(faulty_vendors: Vendors) -> list[torch.device]:
    """Two devices whose matrix products can be made to fail."""
    return make_faulty_devices(faulty_vendors)


def make_faulty_devices(vendors: Vendors) -> list[torch.device]:
    made = vendors(
        Kernel("aten::mm", matrix_product),
        Kernel("aten::mul.Tensor", multiply),
        Kernel("aten::add.Tensor", add),
        COPY,
    )
    return [device.torch_device for device in made.devices]


@contextmanager
def lit(error: BaseException) -> Iterator[None]:
    Fuse.error = error
    try:
        yield
    finally:
        Fuse.error = None


class HostProduct(torch.autograd.Function):
    """The same fault on the host, where PyTorch's own kernels do the work."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return torch.mm(a, b)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if Fuse.error is not None:
            raise Fuse.error
        a, b = ctx.saved_tensors
        return grads[0] @ b.t(), a.t() @ grads[0]


class Graph:
    """Leaves whose gradients are ready before, at, and after the node that fails."""

    def __init__(self, device: torch.device) -> None:
        values = torch.arange(9.0, device="cpu").reshape(3, 3).div(9).to(device)
        self.leaves = [(values + i).detach().requires_grad_() for i in range(4)]

    def loss(self) -> torch.Tensor:
        before, left, right, late = self.leaves
        product = HostProduct.apply if late.device.type == "cpu" else torch.mm
        return (product(left.sin(), right) * late + before.exp()).sum()

    def grads(self) -> list[torch.Tensor | None]:
        return [None if leaf.grad is None else leaf.grad.cpu() for leaf in self.leaves]

    def close_to(self, other: Graph) -> None:
        for mine, theirs in zip(self.grads(), other.grads(), strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs)


def raised_by(run: Callable[[], Any]) -> BaseException | None:
    try:
        run()
    except BaseException as error:  # whatever the user's code raises has to come through, an exit, too
        return error
    return None


def host_after(error: BaseException) -> Graph:
    """What PyTorch leaves on the host."""
    graph = Graph(torch.device("cpu"))
    graph.loss().backward()
    loss = graph.loss()
    with lit(error):
        assert raised_by(loss.backward) is error
    return graph


def in_thread(run: Callable[[], Any]) -> Any:
    answer: list[Any] = []
    thread = threading.Thread(target=lambda: answer.append(run()))
    thread.start()
    thread.join(60)
    assert answer, "the thread did not come back"
    return answer[0]


def here(run: Callable[[], Any]) -> Any:
    return run()


def session_or_not(name: str, device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if name == "outside" else flroute.enable(device, fallback="allow")


def break_in_backward(
    where: str, device: torch.device, run: Callable[..., Any], error: BaseException
) -> Graph:
    """One good step, one that fails in the middle of its backward pass; returns what that left."""
    graph = Graph(device)

    def steps() -> BaseException | None:
        with session_or_not(where, device):
            graph.loss().backward()
            loss = graph.loss()
            with lit(error):
                return raised_by(loss.backward)

    assert run(steps) is error
    return graph


# Errors in the middle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Boom("kernel"), MemoryError("full"), KeyboardInterrupt(), RuntimeError("plain")], ids=repr
)
@pytest.mark.parametrize("run", [here, in_thread], ids=["main thread", "second thread"])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("where", ["outside", "session"])
def test_a_kernel_that_raises(
    where: str, index: int, run: Callable[..., Any], error: BaseException, faulty_devices: list[torch.device]
) -> None:
    device = faulty_devices[index]
    graph = break_in_backward(where, device, run, error)
    host = host_after(error)
    graph.close_to(host)
    # the next step works, and adds to what is there
    for other in (graph, host):
        with session_or_not(where, device) if other is graph else nullcontext():
            other.loss().backward()
    graph.close_to(host)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_the_error_carries_a_note(faulty_devices: list[torch.device]) -> None:
    error = Boom("kernel")
    break_in_backward("session", faulty_devices[0], here, error)
    assert any("python:matrix_product" in note and "aten::mm" in note for note in error.__notes__)


def test_an_error_does_not_change_the_session(faulty_devices: list[torch.device]) -> None:
    device = faulty_devices[1]
    with flroute.enable(device, fallback="allow"):
        loss = Graph(device).loss()
        with lit(Boom()):
            assert isinstance(raised_by(loss.backward), Boom)
        assert torch.ones(1).device == device
    assert torch.ones(1).device.type == "cpu"
    assert torch._C._len_torch_dispatch_stack() == 0


def refusing_backward(device: torch.device, run: Callable[..., Any]) -> tuple[Graph, BaseException]:
    """``fallback="error"`` met in the middle: sin's gradient needs cos, and the vendor has none of these."""
    graph, one = Graph(device), torch.ones((), device=device)
    with flroute.enable(device, fallback="allow"):
        graph.loss().backward()
        loss = graph.loss()
    with flroute.enable(device, fallback="error"):
        error = run(lambda: raised_by(lambda: loss.backward(one)))
    return graph, error


@pytest.mark.parametrize("run", [here, in_thread], ids=["main thread", "second thread"])
@pytest.mark.parametrize("which", ["first", "second", "opaque"])
def test_a_fallback_that_is_refused(
    which: str, run: Callable[..., Any], faulty_devices: list[torch.device]
) -> None:
    device = OPAQUE if which == "opaque" else faulty_devices[which == "second"]
    graph, error = refusing_backward(device, run)
    assert type(error) is flroute.FallbackError
    assert "nothing was computed" in str(error)
    assert str(device) in str(error)
    assert str(error).startswith("aten::cos on")

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.cos.default:
                raise error
            return func(*args, **(kwargs or {}))

    host = Graph(torch.device("cpu"))
    host.loss().backward()
    loss = host.loss()
    with Refuse():
        assert raised_by(loss.backward) is error
    graph.close_to(host)
    with flroute.enable(device, fallback="allow"):
        graph.loss().backward()
    host.loss().backward()
    graph.close_to(host)


def test_errors_one_after_another(faulty_devices: list[torch.device]) -> None:
    graph = Graph(faulty_devices[0])
    with flroute.enable(faulty_devices[0], fallback="allow"):
        for i in range(20):
            loss, error = graph.loss(), Boom(i)
            with lit(error):
                assert raised_by(loss.backward) is error


def test_autograd_grad_raises_too(faulty_devices: list[torch.device]) -> None:
    device = faulty_devices[0]
    for where in ("outside", "session"):
        graph, error = Graph(device), Boom()
        with session_or_not(where, device):
            loss = graph.loss()
            with lit(error):
                assert (
                    raised_by(lambda loss=loss, graph=graph: torch.autograd.grad(loss, graph.leaves)) is error
                )
        assert graph.grads() == [None] * 4


def test_an_error_in_the_second_derivative(faulty_devices: list[torch.device]) -> None:
    device = faulty_devices[0]
    for where in ("outside", "session"):
        error = Boom()
        with session_or_not(where, device):
            graph = Graph(device)
            grads = torch.autograd.grad(graph.loss(), graph.leaves, create_graph=True)
            with lit(error):
                assert raised_by(lambda grads=grads: sum(g.sum() for g in grads).backward()) is error


def test_an_error_in_a_users_function_and_in_a_hook() -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise error

    def hook(grad: torch.Tensor) -> None:
        raise error

    for where in ("outside", "session"):
        error = Boom()
        with session_or_not(where, REFERENCE):
            leaf = torch.ones(3, device=REFERENCE, requires_grad=True)
            assert raised_by(lambda leaf=leaf: Raises.apply(leaf * 2).sum().backward()) is error
            y = leaf * 2
            y.register_hook(hook)
            assert raised_by(lambda y=y: y.sum().backward()) is error
            (leaf * 2).sum().backward()
            assert leaf.grad.tolist() == [2.0] * 3


# The same where PyTorch's device guard cannot be patched -----------------------------------------------------------------

WITHOUT_GUARD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from flroute.device import guard
guard.layouts_are_known = lambda: False
import flroute, support
import test_backward as tests
assert not guard.installed()
seen = []
devices = tests.make_faulty_devices(support.Vendors())
for where in ("outside", "session"):
    for device in devices:
        for run in (tests.here, tests.in_thread):
            print(where, device, run.__name__, file=sys.stderr, flush=True)
            error = tests.Boom("kernel")
            graph = tests.break_in_backward(where, device, run, error)
            graph.close_to(tests.host_after(error))
            with tests.session_or_not(where, device):
                graph.loss().backward()
            if where == "session":
                graph, error = tests.refusing_backward(device, run)
                assert type(error) is flroute.FallbackError, error
                assert str(error).startswith("aten::cos"), error
            seen.append("ok")
print(json.dumps(seen))
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLROUTE_AUTOLOAD": "0"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_errors_without_the_patched_guard() -> None:
    done = python(WITHOUT_GUARD, str(Path(__file__).parent))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]).count("ok") == 8


@pytest.mark.slow
def test_a_session_sees_backward_without_the_patched_guard() -> None:
    code = """
from flroute.device import guard
guard.layouts_are_known = lambda: False
import torch, flroute
with flroute.enable("reference", fallback="allow") as session:
    x = torch.full((3, 3), 2.0, requires_grad=True)
    (x @ x).sum().backward()
print(sum(d.calls for d in session.decisions if d.op == "aten::mm"), x.grad.tolist(), torch._C._len_torch_dispatch_stack())
"""
    done = python(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[0] == f"3 {[[12.0] * 3] * 3} 0"


def test_a_users_mode_sees_host_backward_without_the_patched_guard() -> None:
    code = """
from flroute.device import guard
guard.layouts_are_known = lambda: False
import torch, flroute
with flroute.enable("reference"):
    pass
from torch.utils.flop_counter import FlopCounterMode
x = torch.ones(3, 3, requires_grad=True)
with FlopCounterMode(display=False) as counter:
    (x @ x).sum().backward()
print(counter.get_total_flops())
"""
    done = python(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [str(3 * 2 * 27)]


def test_an_error_under_a_users_mode_without_the_patched_guard() -> None:
    code = """
from flroute.device import guard
guard.layouts_are_known = lambda: False
import torch, flroute
from torch.utils.flop_counter import FlopCounterMode
with flroute.enable("reference", fallback="allow"):
    x = torch.ones(2, requires_grad=True)
    y = torch.lgamma(x).sum()
order = {"aten::digamma": ["host"]}
flroute.routers.process_router().settings = flroute.settings.load_settings(fallback="error", order=order)
try:
    with FlopCounterMode(display=False):
        y.backward()
except flroute.FallbackError as error:
    print(str(error).split()[0])
"""
    done = python(code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["aten::digamma"]


# What autograd offers ----------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """Saves a tensor, and is differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grads[0]


def second_derivative(x: torch.Tensor) -> list[torch.Tensor]:
    (first,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    return [first.detach(), second]


def gradient_penalty(x: torch.Tensor) -> list[torch.Tensor]:
    (first,) = torch.autograd.grad((x @ x.t()).tanh().sum(), x, create_graph=True)
    first.norm().backward()
    return [x.grad]


def retained_graph(x: torch.Tensor) -> list[torch.Tensor]:
    loss = x.sigmoid().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return [x.grad]


def hooks(x: torch.Tensor) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g.clone()))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0].clone()))
    y.sum().backward()
    return [*seen, x.grad, y.grad]


def explicit_gradient(x: torch.Tensor) -> list[torch.Tensor]:
    (x * x).backward(torch.full_like(x, 0.5))
    return [x.grad]


def custom_function(x: torch.Tensor) -> list[torch.Tensor]:
    (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first.detach(), second]


def only_inputs(x: torch.Tensor) -> list[torch.Tensor]:
    other = torch.ones_like(x).requires_grad_()
    (x * other).sum().backward(inputs=[other])
    assert x.grad is None
    return [other.grad]


def unused_input(x: torch.Tensor) -> list[torch.Tensor]:
    other = torch.ones_like(x).requires_grad_()
    first, nothing = torch.autograd.grad((x * 2).sum(), (x, other), allow_unused=True)
    assert nothing is None
    zeros = torch.autograd.grad((x * 2).sum(), (x, other), allow_unused=True, materialize_grads=True)
    return [first, *zeros]


def batched_gradient(x: torch.Tensor) -> list[torch.Tensor]:
    y = x[0] * 2
    return list(torch.autograd.grad(y, x, torch.eye(3, device=x.device), is_grads_batched=True))


def jacobian_and_hessian(x: torch.Tensor) -> list[torch.Tensor]:
    v = x.detach()[0]
    jacobian = torch.autograd.functional.jacobian(lambda t: t.exp(), v)
    return [jacobian, torch.autograd.functional.hessian(lambda t: (t**3).sum(), v)]


def saved_tensor_hooks(x: torch.Tensor) -> list[torch.Tensor]:
    with torch.autograd.graph.save_on_cpu():
        loss = (x.exp() * x).sum()
    loss.backward()
    return [x.grad]


def anomaly_mode(x: torch.Tensor) -> list[torch.Tensor]:
    with torch.autograd.detect_anomaly(check_nan=True):
        x.log1p().sum().backward()
    return [x.grad]


def grad_of_a_zero_gradient(x: torch.Tensor) -> list[torch.Tensor]:
    x.sgn().sum().backward()
    return [x.grad]


def accumulated(x: torch.Tensor) -> list[torch.Tensor]:
    for _ in range(3):
        (x * x.detach()).sum().backward()
    return [x.grad]


def forward_mode(x: torch.Tensor) -> list[torch.Tensor]:
    primal, tangent = torch.func.jvp(lambda t: t.sin() * t, (x.detach(),), (torch.ones_like(x),))
    return [primal, tangent]


TASKS = [
    second_derivative, gradient_penalty, retained_graph, hooks, explicit_gradient, custom_function, only_inputs,
    unused_input, batched_gradient, jacobian_and_hessian, saved_tensor_hooks, anomaly_mode, grad_of_a_zero_gradient,
    accumulated, forward_mode,
]  # fmt: skip


@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_like_on_the_host(task: Callable[..., list[torch.Tensor]], where: str, device: torch.device) -> None:
    values = torch.linspace(0.1, 1.4, 9, device="cpu").reshape(3, 3)
    host = task(values.clone().requires_grad_())
    with session_or_not(where, device):
        there = task(values.to(device).requires_grad_())
    assert all(t.device == device for t in there)
    torch.testing.assert_close([t.cpu() for t in there], host)


def test_backward_runs_in_the_calling_thread() -> None:
    for device in (REFERENCE, SECOND):
        names: list[str] = []
        leaf = torch.ones(2, device=device, requires_grad=True)
        y = leaf * 2
        y.register_hook(lambda g, names=names: names.append(threading.current_thread().name))

        def work(y: torch.Tensor = y) -> bool:
            y.sum().backward()
            return True

        thread_name: list[str] = []
        in_thread(lambda: (thread_name.append(threading.current_thread().name), work()))
        assert names == thread_name


@pytest.mark.parametrize("device", [SECOND, OPAQUE], ids=["host-visible", "opaque"])
def test_explicit_gradient_from_a_second_thread(device: torch.device) -> None:
    leaf = torch.ones(3, device=device, requires_grad=True)
    y, gradient = leaf * 2, torch.full((3,), 4.0, device=device)
    assert in_thread(lambda: raised_by(lambda: y.backward(gradient)) is None)
    assert leaf.grad.tolist() == [8.0] * 3


def test_two_devices_in_one_graph() -> None:
    a = torch.ones(3, device=REFERENCE, requires_grad=True)
    b = torch.ones(3, device=OPAQUE, requires_grad=True)
    c = torch.ones(3, requires_grad=True)
    ((a * 2).to(OPAQUE) * b * 3 + c.to(OPAQUE)).sum().cpu().backward()
    assert (a.grad.device, b.grad.device, c.grad.device.type) == (REFERENCE, OPAQUE, "cpu")
    assert (a.grad.tolist(), b.grad.tolist(), c.grad.tolist()) == ([6.0] * 3, [6.0] * 3, [1.0] * 3)
