"""What registering the device would break in the rest of the process."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing import reductions
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import flroute
from flroute.activation import CURES

DEVICE, SECOND = torch.device("fl:0"), torch.device("fl:1")


def test_every_cure_is_named_and_explained() -> None:
    assert len({cure.name for cure in CURES}) == len(CURES) > 0
    assert all(cure.why and "\n" not in cure.why for cure in CURES)


def test_installing_again_changes_nothing() -> None:
    def state() -> tuple[Any, ...]:
        storage = torch.UntypedStorage
        engine = (torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward)
        options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
        return (
            storage.__new__,
            storage._new_shared.__func__,
            torch._tensor_str._tensor_str,
            getattr(options, "_adjust", None),
            torch._TorchCompileInductorWrapper.__call__,
            *engine,
        )

    before = state()
    for cure in CURES:
        cure.install()
    assert state() == before


# Compiled graphs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_torch_compile_runs_graphs_of_the_device_op_by_op(session: bool) -> None:
    """By its default backend, Inductor, which raises for a device that it has no code for."""
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    there = copy.deepcopy(model).to(DEVICE)
    there.zero_grad()
    with (
        flroute.enable(DEVICE, fallback="error", default_device=False) if session else nullcontext() as opened
    ):
        torch.compile(there)(x.to(DEVICE)).sum().backward()
    for parameter, wanted in zip(there.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), wanted)
    if opened is not None:
        assert "aten::gelu_backward" in {decision.op for decision in opened.decisions}


def test_graphs_of_the_host_stay_with_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: given.append(graph) or graph.forward
    )
    assert torch.compile(lambda x: x * 2)(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(given) == 1


# Storages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["fl", "fl:1", SECOND], ids=repr)
def test_storages_are_made_on_the_device(device: Any) -> None:
    storage = torch.UntypedStorage(8, device=device)
    assert (storage.device, storage.nbytes()) == (DEVICE if device == "fl" else SECOND, 8)
    tensor = torch.empty(0, device=storage.device).set_(storage, 0, (2,))
    tensor.fill_(3)
    assert tensor.tolist() == [3, 3]


def test_storages_without_elements_and_from_values() -> None:
    assert torch.UntypedStorage(device="fl:1").device == SECOND
    assert torch.UntypedStorage(0, device="fl:1").nbytes() == 0
    assert torch.UntypedStorage([1, 2, 3], device="fl:1").cpu().tolist() == [1, 2, 3]


def test_storages_move_and_copy() -> None:
    host = torch.UntypedStorage([1, 2, 3])
    there = host.to(device="fl:1")
    for made in (there, copy.copy(there), copy.deepcopy(there), there.to(device="fl:0").to(device="fl:1")):
        assert made.device == SECOND
        assert made.cpu().tolist() == [1, 2, 3]


def test_host_storages_are_as_before() -> None:
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"
    assert torch.UntypedStorage._new_shared(4).is_shared()


def test_a_storage_on_a_device_that_does_not_exist() -> None:
    with pytest.raises(flroute.DeviceError, match="fl:99 does not exist"):
        torch.UntypedStorage(4, device="fl:99")


# Other processes --------------------------------------------------------------------------------------------------


class OnDevice(Dataset[torch.Tensor]):
    """Makes its samples where they should not be made: on the device, in the worker."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(torch.full((2,), float(index)).to("fl"))


WORKER_RESULTS: dict[str, tuple[Callable[[torch.Tensor], Any], dict[str, Any]]] = {
    "default collate": (lambda t: t, {"batch_size": 2}),
    "own collate": (lambda t: t, {"batch_size": 2, "collate_fn": torch.stack}),
    "no batches": (lambda t: t, {"batch_size": None}),
    "parameters": (nn.Parameter, {"batch_size": None}),
    "a storage": (lambda t: t.untyped_storage(), {"batch_size": None}),
    "a view in a dict": (lambda t: {"x": t[1:]}, {"batch_size": None}),
}


@pytest.mark.parametrize("name", WORKER_RESULTS)
def test_a_worker_that_returns_device_tensors_says_what_to_do(name: str) -> None:
    make, options = WORKER_RESULTS[name]
    loader = DataLoader(OnDevice(make), num_workers=1, timeout=60, **options)
    with pytest.raises(
        flroute.DeviceError, match="return it on the host and move it in the training process"
    ):
        next(iter(loader))


def test_a_worker_that_returns_host_tensors_made_on_the_device() -> None:
    loader = DataLoader(OnDevice(lambda t: (t * 2).cpu()), num_workers=1, batch_size=4, timeout=60)
    assert next(iter(loader)).to("fl").tolist() == [[0, 0], [2, 2], [4, 4], [6, 6]]


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter], ids=lambda kind: kind.__name__)
def test_sending_through_a_pipe_is_refused_where_it_is_sent(kind: type[torch.Tensor]) -> None:
    ours, theirs = torch.multiprocessing.Pipe()
    value = torch.ones(2, device="fl")
    value = nn.Parameter(value) if kind is nn.Parameter else value
    with ours, theirs, pytest.raises(flroute.DeviceError, match=r"a \w+ of \(2,\) on fl:0 cannot be sent"):
        ours.send(value)


def test_host_tensors_are_still_sent_in_shared_memory() -> None:
    ours, theirs = torch.multiprocessing.Pipe()
    with ours, theirs:
        x = torch.ones(2)
        ours.send(x)
        received = theirs.recv()
        assert x.is_shared()
        received.fill_(5)
        assert x.tolist() == [5, 5]
    assert reductions.reduce_tensor(torch.ones(1))


# Tensors that take the data of others -------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("place", ["fl:1", "opaque:0"])
def test_data_goes_to_the_device_and_back(place: str, session: bool) -> None:
    """As scripts for cuda write it: the Parameter, its hooks and whoever holds it stay."""
    device = flroute.device(place)
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    (parameter * 2).sum().backward()  # an accumulator for the host is there already
    parameter.grad, seen = None, []
    parameter.register_hook(seen.append)

    def step(where: torch.device) -> None:
        parameter.data = parameter.data.to(where)
        assert (parameter.device, type(parameter), parameter.is_leaf) == (where, nn.Parameter, True)
        (parameter * 2).sum().backward()
        assert parameter.grad is not None
        assert parameter.grad.device == seen.pop().device == where
        optimizer.step()
        optimizer.zero_grad()

    def there_and_back() -> None:
        for where in (device, torch.device("cpu"), device):
            step(where)

    if session:
        with flroute.enable(device, fallback="allow", default_device=False):
            there_and_back()
    else:
        there_and_back()
    assert parameter.tolist() == [-2.0, -1.0]


def test_data_of_another_layout_is_refused_as_on_the_host() -> None:
    sparse = torch.ones(2).to_sparse()
    for tensor, other in ((torch.ones(2, device=DEVICE), sparse), (torch.ones(2), sparse.to(DEVICE))):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            tensor.data = other


# Pinned memory ----------------------------------------------------------------------------------------------------


class Batches(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield {"x": torch.arange(3.0), "names": ["a", "b"], "pair": (torch.ones(1), 2)}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_pins_memory(workers: int) -> None:
    loader = DataLoader(Batches(), batch_size=None, pin_memory=True, num_workers=workers)
    (batch,) = list(loader)
    assert batch["x"].tolist() == [0, 1, 2]
    assert batch["names"] == ["a", "b"]
    assert batch["x"].to("fl", non_blocking=True).device == DEVICE


def test_pinning_a_host_tensor_gives_the_tensor() -> None:
    x = torch.arange(3.0)
    assert x.pin_memory().data_ptr() == x.data_ptr()
    assert x.pin_memory("fl").tolist() == [0, 1, 2]
    assert x.is_pinned() is False
    assert x.untyped_storage().is_pinned() is False


@pytest.mark.filterwarnings("error")
def test_pinning_keeps_the_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    assert x.pin_memory() is x
    (x * 3).pin_memory().sum().backward()
    torch.ops.aten._pin_memory(x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_training_with_a_pinning_loader() -> None:
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    model = nn.Linear(3, 1).to("fl")
    for x, y in DataLoader(data, batch_size=4, pin_memory=True):
        nn.functional.mse_loss(model(x.to("fl")), y.to("fl")).backward()
    assert model.weight.grad is not None


# Backward passes --------------------------------------------------------------------------------------------------


Backward = Callable[[torch.Tensor, torch.Tensor], Any]


def threads_of_backward(run: Backward, device: torch.device) -> set[int]:
    """The threads in which gradients of a tensor on ``device`` were computed."""
    seen: set[int] = set()

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.add(threading.get_ident())
            return gradient

    x = torch.ones(2, device=device, requires_grad=True)
    run(Spy.apply(x * 2), x)
    return seen


def under_inference_mode(y: torch.Tensor, x: torch.Tensor) -> None:
    loss = y.sum()
    with torch.inference_mode():
        loss.backward()


def with_multithreading_on(y: torch.Tensor, x: torch.Tensor) -> None:
    with torch.autograd.set_multithreading_enabled(True):
        y.sum().backward()


def nested(y: torch.Tensor, x: torch.Tensor) -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = torch.ones(2, device=gradient.device, requires_grad=True)
                (x * 2).sum().backward()
            return gradient

    Inner.apply(y).sum().backward()


BACKWARDS: dict[str, Backward] = {
    "backward": lambda y, x: y.sum().backward(),
    "backward with a gradient": lambda y, x: y.backward(torch.ones_like(y)),
    "torch.autograd.backward": lambda y, x: torch.autograd.backward([y.sum()]),
    "torch.autograd.grad": lambda y, x: torch.autograd.grad(y.sum(), x),
    "batched grad": lambda y, x: torch.autograd.grad(
        y, x, torch.eye(2, device=y.device), is_grads_batched=True
    ),
    "retain_graph": lambda y, x: [y.sum().backward(retain_graph=True) for _ in range(2)],
    "create_graph": lambda y, x: (
        torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].sum().backward()
    ),
    "inference_mode": under_inference_mode,
    "nested": nested,
    "checkpoint": lambda y, x: checkpoint(lambda t: t.sin().sum(), y, use_reentrant=False).backward(),
    "reentrant checkpoint": lambda y, x: checkpoint(
        lambda t: t.sin().sum(), y, use_reentrant=True
    ).backward(),
    "multithreading on": with_multithreading_on,
}


@pytest.mark.parametrize("device", [DEVICE, SECOND], ids=str)
@pytest.mark.parametrize("name", BACKWARDS)
def test_backward_runs_in_the_calling_thread(name: str, device: torch.device) -> None:
    assert threads_of_backward(BACKWARDS[name], device) == {threading.get_ident()}


def test_backward_in_another_thread_stays_there() -> None:
    seen: list[tuple[set[int], int]] = []

    def work() -> None:
        seen.append(
            (threads_of_backward(BACKWARDS["backward with a gradient"], SECOND), threading.get_ident())
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [({seen[0][1]}, seen[0][1])]


def test_the_callers_setting_comes_back_after_backward() -> None:
    for enabled in (True, False):
        with torch.autograd.set_multithreading_enabled(enabled):
            torch.ones(2, device="fl", requires_grad=True).sum().backward()
            assert torch._C._is_multithreading_enabled() is enabled


def test_the_engines_entry_keeps_its_signature() -> None:
    entry = torch.autograd.graph._engine_run_backward
    assert entry is torch.autograd._engine_run_backward
    assert inspect.signature(entry) == inspect.signature(inspect.unwrap(entry))
    assert entry.__name__ == "_engine_run_backward"


def test_an_error_in_backward_reaches_the_caller() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("mine")

    x = torch.ones(2, device="fl", requires_grad=True)
    with pytest.raises(ZeroDivisionError, match="mine"):
        Broken.apply(x).sum().backward()
    assert x.grad is None
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]


SHORT_PROCESS = """
    import threading, torch, flroute
    def work():
        model = torch.nn.Linear(3, 2).to("fl:1")
        y = model(torch.ones(4, 3, device="fl:1"))
        y.backward(torch.ones_like(y))
        assert model.weight.grad.tolist() == [[4.0] * 3] * 2
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("done")
"""


# Choices that PyTorch makes by device type ------------------------------------------------------------------------


@pytest.mark.skipif(
    not hasattr(torch.nn, "LinearCrossEntropyOptions"),
    reason="PyTorch 2.13 is the first to have these options",
)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_half_precision_is_accumulated_as_on_the_host(reduction: str) -> None:
    """In float32: in bfloat16 the gradients would be several times as far from the truth as the host's."""
    cross_entropy: Any = torch.nn.functional.linear_cross_entropy
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    host = [torch.randn(8, 64, dtype=torch.bfloat16) for _ in range(2)]
    target = torch.arange(8)
    gradients = []
    for device in (torch.device("cpu"), DEVICE):
        inputs = [t.to(device).requires_grad_() for t in host]
        loss = cross_entropy(*inputs, target.to(device), reduction=reduction, options=options)
        gradients.append([g.cpu() for g in torch.autograd.grad(loss.sum(), inputs)])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-12)


def test_a_short_process_that_ran_backward_exits_cleanly() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHORT_PROCESS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


# Printing ---------------------------------------------------------------------------------------------------------

numbers = torch.arange(6.0, device="cpu").reshape(2, 3) / 7
PRINTED: dict[str, torch.Tensor] = {
    "floats": numbers,
    "one number": numbers[1, 2],
    "nothing": numbers[:0],
    "not contiguous": numbers.t(),
    "integers": numbers.to(torch.int8),
    "truth": numbers > 0.5,
    "bfloat16": numbers.bfloat16(),
    "float8": numbers.to(torch.float8_e4m3fn),
    "complex": torch.complex(numbers, -numbers).conj(),
    "negated": torch.complex(numbers, numbers).conj().imag,
    "infinite": torch.tensor([float("nan"), float("inf"), 1.0]),
    "summarized": torch.arange(2400.0).reshape(40, 60),
}


@pytest.mark.parametrize("name", PRINTED)
def test_tensors_are_printed_as_on_the_host(name: str) -> None:
    host = PRINTED[name]
    there = host.to(DEVICE)
    with torch._tensor_str.printoptions(linewidth=10_000):
        expected = repr(host)
        assert repr(there).replace(", device='fl:0'", "") == expected
        with flroute.enable("reference", fallback="error") as session:
            assert repr(there).replace(", device='fl:0'", "") == expected
    assert {str(decision.route) for decision in session.decisions} <= {"copy", "decomposed"}


def test_a_printed_tensor_keeps_its_history() -> None:
    weight = nn.Parameter(torch.ones(2, device=DEVICE))
    assert "Parameter containing" in repr(weight)
    assert "requires_grad=True" in repr(weight)
    assert "grad_fn=<MulBackward0>" in repr(weight * 2)
    assert "device='fl:0'" in repr(weight)
    assert torch.vmap(lambda row: repr(row).startswith("BatchedTensor") * row)(weight).tolist() == [1.0, 1.0]
