"""Device memory is counted to the byte, comes back, and running out of it is an error like any other."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.device.table import device_at
from flroute.vendor import HostMemory, Kernel
from support import COPY, Vendors, throw_away_vendors

REFERENCE, OPAQUE = flroute.device("reference:0"), flroute.device("opaque:0")
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]

vendors = pytest.fixture(throw_away_vendors)


allocated = torch.fl.memory_allocated


def comes_back_to(expected: int, device: torch.device) -> bool:
    """Whether that many bytes are in use, once cycles are collected if need be."""
    if allocated(device) != expected:
        gc.collect()
    return bool(allocated(device) == expected)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every test of this file gives back what it took."""
    gc.freeze()  # makes collections fast: only what a test makes is looked at
    before = {device: allocated(device) for device in (REFERENCE, OPAQUE)}
    yield
    assert all(comes_back_to(nbytes, device) for device, nbytes in before.items())
    gc.unfreeze()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_every_byte_counts(session: bool, device: torch.device) -> None:
    def run() -> None:
        start = allocated(device)
        made = []
        total = 0
        for make, nbytes in (
            (lambda: torch.empty(7, device=device), 28),
            (lambda: torch.empty(0, device=device), 0),
            (lambda: torch.empty((), device=device), 4),
            (lambda: torch.zeros(3, 5, dtype=torch.float64, device=device), 120),
            (lambda: torch.ones(9, dtype=torch.bool, device=device), 9),
            (lambda: torch.empty(4, dtype=torch.complex128, device=device), 64),
            (lambda: torch.empty(6, dtype=torch.bfloat16, device=device), 12),
            (lambda: torch.empty_strided((3, 2), (5, 1), device=device), 48),
            (lambda: torch.empty(1, 4, 2, 2, memory_format=torch.channels_last, device=device), 64),
            (lambda: torch.arange(10.0, device="cpu").to(device), 40),
            (lambda: torch.tensor([1, 2, 3], device=device), 24),
            (lambda: torch.empty(5, dtype=torch.float8_e4m3fn, device=device), 5),
            (lambda: made[0] + made[0], 28),  # native
            (lambda: torch.hypot(made[0], made[0]), 28),  # host fallback
            (lambda: made[0].clone(), 28),
            (lambda: torch.nn.Parameter(torch.empty(3, device=device)), 12),
        ):
            made.append(make())
            total += nbytes
            assert torch.fl.memory_allocated(device) - start == total, made[-1].shape
        made.clear()
        assert comes_back_to(start, device)

    if session:
        with flroute.enable(device, fallback="allow"):
            run()
    else:
        run()


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_lives_as_long_as_its_last_alias(device: torch.device) -> None:
    start = allocated(device)
    x = torch.empty(10, device=device)
    alias, storage = x.view(2, 5)[1], x.untyped_storage()
    del x
    assert comes_back_to(start + 40, device)
    del alias
    assert comes_back_to(start + 40, device)
    del storage
    assert comes_back_to(start, device)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "native": lambda x: torch.relu(x + x) * 2,
    "native in place": lambda x: x.clone().add_(1).mul_(x),
    "native out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "fallback": lambda x: torch.hypot(x, x),
    "fallback in place": lambda x: x.clone().hypot_(x),
    "fallback out": lambda x: torch.hypot(x, x, out=torch.empty(0, device=x.device)),
    "several results": lambda x: torch.sort(x, 1),
    "a list of results": lambda x: torch.unbind(x),
    "data-dependent size": lambda x: x.nonzero(),
    "empty result": lambda x: torch.masked_select(x, x > 1e6),
    "decomposed": lambda x: torch.nn.functional.softplus(x).var(),
    "random": lambda x: torch.nn.functional.dropout(x, 0.5),
    "view": lambda x: x.t()[1:].unsqueeze(0),
    "matmul": lambda x: x @ x.t(),
    "scalar": lambda x: x.sum().item(),
    "to the host": lambda x: x.cpu(),
    "to the other vendor": lambda x: x.to(OPAQUE if x.device == REFERENCE else REFERENCE).cpu(),
    "other dtype": lambda x: x.double().half(),
    "repr": repr,
    "index": lambda x: x[torch.tensor([1, 0], device=x.device)],
    "foreach": lambda x: torch._foreach_mul([x, x], 2),
    "unusual dtype": lambda x: x.to(torch.float8_e5m2).view(torch.uint8),
    "error of the caller": lambda x: _ignoring(RuntimeError, lambda: x + torch.ones(4, device=x.device)),
    "error of the host": lambda x: _ignoring(RuntimeError, lambda: torch.linalg.cholesky(-x @ x.t())),
    "mixed devices": lambda x: _ignoring(flroute.DeviceError, lambda: x + torch.ones(2, 3)),
}


def _ignoring(error: type[BaseException], call: Callable[[], Any]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session", "inference"])
@pytest.mark.parametrize("name", CALLS)
def test_memory_returns_to_the_start(name: str, where: str, device: torch.device) -> None:
    def run() -> None:
        start = allocated(device)
        x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 2.5, -1.5]], device=device)
        for _ in range(3):  # the general path, then the hot one
            CALLS[name](x)
        assert comes_back_to(start + 24, device), "what a call leaves behind"
        del x
        assert comes_back_to(start, device), "the argument itself is kept by somebody"

    if where == "outside":
        run()
    else:
        with (
            flroute.enable(device, fallback="allow", default_device=False),
            torch.inference_mode(where == "inference"),
        ):
            run()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_a_training_step_gives_everything_back(session: bool, device: torch.device) -> None:
    def step() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=device)).sum().backward()
            optimizer.step()

    start = allocated(device)
    if session:
        with flroute.enable(device, fallback="allow"):
            step()
    else:
        step()
    assert comes_back_to(start, device)


@pytest.mark.parametrize("device", DEVICES)
def test_peak(device: torch.device) -> None:
    start = allocated(device)
    torch.fl.reset_peak_memory_stats(device)
    assert torch.fl.max_memory_allocated(device) == start
    x = torch.empty(1000, device=device)
    y = torch.empty(500, device=device)
    del x
    z = torch.empty(100, device=device)
    assert torch.fl.max_memory_allocated(device) == start + 6000
    torch.fl.reset_peak_memory_stats(device)
    assert torch.fl.max_memory_allocated(device) == start + 2400
    del y, z
    assert torch.fl.max_memory_allocated(device) == start + 2400


def test_devices_are_counted_apart() -> None:
    first, second = torch.fl.memory_allocated(0), torch.fl.memory_allocated(1)
    x = torch.empty(10, device="fl:1")
    assert (torch.fl.memory_allocated(0), torch.fl.memory_allocated(1)) == (first, second + 40)
    with torch.fl.device(1):
        assert torch.fl.memory_allocated() == second + 40
    del x


@pytest.mark.parametrize("device", DEVICES)
def test_counting_is_exact_under_threads(device: torch.device) -> None:
    def work() -> None:
        for i in range(300):
            x = torch.empty(1 + i % 5, device=device)
            y = x + x
            del x
            y.add_(1)

    start = allocated(device)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert comes_back_to(start, device)


def test_the_vendor_gets_every_block_back() -> None:
    from flroute_opaque_vendor.memory import MEMORY

    gc.collect()
    before = MEMORY.used(0)
    with flroute.enable(OPAQUE, fallback="allow"):
        x = torch.ones(100, requires_grad=True)
        (x * 2).hypot(x).sum().backward()
        assert MEMORY.used(0) >= before + 400
        del x
    gc.collect()
    assert MEMORY.used(0) == before


class Counting(HostMemory):
    """Counts blocks, and refuses when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.full = False

    def allocate(self, device: int, nbytes: int) -> int:
        if self.full:
            raise MemoryError("told to be full")
        address = super().allocate(device, nbytes)
        self.live[address] = nbytes
        return address

    def free(self, device: int, address: int, nbytes: int) -> None:
        assert self.live.pop(address) == nbytes
        super().free(device, address, nbytes)


def test_free_is_called_once_with_what_was_allocated(vendors: Vendors) -> None:
    memory = Counting()
    device = vendors(memory=memory).device
    x = torch.empty(3, device=device)
    y = torch.empty(0, device=device)
    z = torch.empty(2, 3, dtype=torch.float64, device=device)
    assert sorted(memory.live.values()) == [1, 12, 48]
    view = z[1]
    del x, y, z
    assert list(memory.live.values()) == [48]
    del view
    assert memory.live == {}


# Out of memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.empty(2**33, device=d),
        lambda d: torch.zeros(2**18, 2**15, device=d),
        lambda d: torch.ones(1, device=d).repeat(2**29),
        lambda d: torch.empty_strided((2, 2), (2**33, 1), device=d),
        lambda d: torch.empty(1, device=d).resize_(2**31),
        lambda d: torch.empty(2**28 + 1, device=d),
    ],
    ids=["empty", "zeros", "repeat", "empty_strided", "resize_", "just too much"],
)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_out_of_memory(session: bool, call: Callable[[torch.device], Any]) -> None:
    keep = torch.arange(4.0).to(OPAQUE)

    def run() -> None:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
            call(OPAQUE)
        message = str(caught.value)
        assert str(OPAQUE) in message
        assert "opaque:0" in message
        assert "in use" in message

    if session:
        with flroute.enable(OPAQUE, fallback="allow"):
            run()
    else:
        run()
    assert (keep + 1).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_out_of_memory_on_the_host_is_the_same_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2**44, device=REFERENCE)


def test_out_of_memory_in_backward(vendors: Vendors) -> None:
    memory = Counting()
    device = vendors(COPY, memory=memory).device
    leaf = torch.ones(8, device=device, requires_grad=True)
    with flroute.enable(device, fallback="allow"):
        loss = leaf.view(2, 4).repeat(2, 1).sum()
        memory.full = True
        with pytest.raises(torch.OutOfMemoryError):
            loss.backward()
        memory.full = False
        leaf.view(2, 4).repeat(2, 1).sum().backward()
    assert leaf.grad.tolist() == [2.0] * 8


# Errors while tensors die -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("kernel"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_temporaries_that_die_do_not_swallow_the_error(
    error: BaseException, session: bool, vendors: Vendors
) -> None:
    """Tensors die while a kernel's error unwinds through PyTorch's C++: what runs at their death must leave it alone."""

    def fails(x: Any) -> Any:
        if fails.lit:
            raise error
        return np.sin(x)

    fails.lit = False
    memory = Counting()
    device = vendors(Kernel("aten::sin", fails), COPY, memory=memory).device
    stats = device_at(device.index).stats
    gc.collect()
    start = stats.allocated

    def run() -> None:
        for lit in (False, False, True):
            fails.lit = lit
            for call in (
                lambda: torch.sin(torch.ones(5, device=device) + torch.empty(5, device=device)),
                lambda: torch.sin(torch.empty(4, device=device).fill_(1)).mul_(torch.empty(4, device=device)),
                lambda: torch.stack(
                    [torch.hypot(torch.ones(3, device=device), torch.empty(3, device=device)).sin()]
                ),
                lambda: torch.nn.Sequential(torch.nn.Linear(2, 2, device=device), Sine())(
                    torch.ones(1, 2, device=device)
                ),
            ):
                if not lit:
                    call()
                    continue
                with pytest.raises(type(error)) as caught:
                    call()
                assert caught.value is error

    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    if session:
        with flroute.enable(device, fallback="allow"):
            run()
    else:
        run()
    error.__traceback__ = None  # its frames hold the arguments
    gc.collect()
    assert stats.allocated == start
    assert memory.live == {}
