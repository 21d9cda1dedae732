"""Memory of host-visible devices comes from a pool: when blocks come back, what is kept, and what a full pool does."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.reference_vendor.memory import LARGE, MEMORY, empty, empty_like
from flroute.vendor import HostMemory, Kernel
from support import Vendors, throw_away_vendors

DEVICE, OTHER, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:0"),
)
MIB = 1 << 20
N = MIB // 4  # elements of float32 in a MiB
POOL = MEMORY.pool(0)

vendors = pytest.fixture(throw_away_vendors)


def used() -> int:
    return POOL.stats().used


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every test of this file gives back what it took from the pool."""
    gc.freeze()  # makes collections fast: only what a test makes is looked at
    before, limit = used(), POOL.limit
    yield
    POOL.limit = limit
    gc.collect()
    gc.unfreeze()
    assert used() <= before


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Room for 8 MiB more, whatever gaps earlier tests left between blocks they still hold."""
    torch.fl.empty_cache()
    filling = []
    while POOL.stats().largest_free >= LARGE:
        filling.append(torch.empty(POOL.stats().largest_free, dtype=torch.uint8, device=DEVICE))
    POOL.limit = POOL.stats().reserved + 8 * MIB
    yield
    del filling


def session() -> flroute.Session:
    return flroute.enable(DEVICE, fallback="error", default_device=False)


# Blocks come back --------------------------------------------------------------------------------------------------------


def test_a_block_comes_back_with_the_last_that_uses_it() -> None:
    start = used()
    with session():
        x = torch.ones(N, device=DEVICE)
        y = x + x
    assert used() == start + 2 * MIB
    view, storage = y.view(2, -1)[1], y.untyped_storage()
    address = y.data_ptr()
    del y
    assert used() == start + 2 * MIB
    del view
    assert used() == start + 2 * MIB
    del storage
    assert used() == start + MIB
    with session():
        y = x * x
    assert y.data_ptr() == address, "the next result of that size takes its place"
    assert y.sum().item() == N


def test_a_storage_that_grows_gives_the_old_block_back() -> None:
    start = used()
    x = torch.ones(N, device=DEVICE)
    alias = x.view(-1)
    x.resize_(4 * N)
    assert used() == start + 4 * MIB
    assert alias.sum().item() == N
    del x, alias
    assert used() == start


def test_arrays_keep_their_block() -> None:
    start = used()
    array = empty((N,), np.dtype(np.float32))
    assert used() == start + MIB
    part = array[10:20]
    del array
    assert used() == start + MIB
    part[:] = 1
    del part
    assert used() == start


def test_small_arrays_are_numpys_own() -> None:
    start = used()
    array = empty((LARGE // 4 - 1,), np.dtype(np.float32))
    assert array.base is None
    assert used() == start


@pytest.mark.parametrize("order", ["C", "F"])
def test_empty_like_keeps_the_order_of_dimensions(order: Any) -> None:
    x = np.ones((512, 512), np.float32, order=order)
    assert empty_like(x).strides == x.strides
    assert empty_like(x, (3, 4)).shape == (3, 4)


# What torch.fl says ------------------------------------------------------------------------------------------------------


def test_reserved_is_what_is_kept_too() -> None:
    torch.fl.empty_cache()
    start = torch.fl.memory_reserved(DEVICE)
    allocated = torch.fl.memory_allocated(DEVICE)
    x = torch.empty(40 * N, device=DEVICE)
    assert torch.fl.memory_allocated(DEVICE) == allocated + 40 * MIB
    assert torch.fl.memory_reserved(DEVICE) == start + 40 * MIB
    del x
    assert torch.fl.memory_allocated(DEVICE) == allocated
    assert torch.fl.memory_reserved(DEVICE) == start + 40 * MIB
    torch.fl.empty_cache()
    assert torch.fl.memory_reserved(DEVICE) == start


def test_empty_cache_gives_pages_back_to_the_system() -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("the system does not say how much memory the process has")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    x = torch.ones(64 * N, device=DEVICE)
    full = resident()
    del x
    assert resident() > full - 8 * MIB
    torch.fl.empty_cache()
    assert resident() < full - 56 * MIB


def test_memory_stats() -> None:
    x = torch.ones(N, device=DEVICE)
    stats = torch.fl.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.current"] == torch.fl.memory_allocated(DEVICE)
    assert stats["allocated_bytes.all.peak"] == torch.fl.max_memory_allocated(DEVICE)
    assert stats["reserved_bytes.all.current"] == torch.fl.memory_reserved(DEVICE)
    assert stats["active_bytes.all.current"] == used() >= MIB
    assert stats["segment.all.current"] >= 1
    assert stats["inactive_split_bytes.all.current"] >= 0
    del x


def test_a_vendor_without_a_pool_keeps_nothing() -> None:
    x = torch.ones(N, device=OPAQUE)
    assert torch.fl.memory_reserved(OPAQUE) == torch.fl.memory_allocated(OPAQUE) >= MIB
    assert torch.fl.memory_stats(OPAQUE)["reserved_bytes.all.current"] == torch.fl.memory_allocated(OPAQUE)
    with pytest.raises(flroute.DeviceError, match=r"opaque:0.*no memory pool"):
        torch.fl.set_per_process_memory_fraction(0.5, OPAQUE)
    del x


def test_memory_fraction() -> None:
    torch.fl.set_per_process_memory_fraction(0.25, DEVICE)
    total = torch.fl.get_device_properties(DEVICE).total_memory
    assert POOL.limit == total // 4
    with pytest.raises(torch.OutOfMemoryError, match=f"limit is {total // 4}"):
        torch.empty(total // 4 + 1, dtype=torch.uint8, device=DEVICE)
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            torch.fl.set_per_process_memory_fraction(wrong, DEVICE)


def test_training_returns_to_the_start() -> None:
    def train() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.GELU(), torch.nn.Linear(500, 300))
        model.to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(400, 300, device=DEVICE)
        with session():
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    gc.collect()
    allocated, start = torch.fl.memory_allocated(DEVICE), used()
    train()
    gc.collect()
    assert torch.fl.memory_allocated(DEVICE) == allocated
    assert used() == start
    assert torch.fl.max_memory_allocated(DEVICE) > allocated + MIB


# A full pool -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_says_what_happened() -> None:
    x = torch.ones(3 * N, device=DEVICE)
    with session(), pytest.raises(torch.OutOfMemoryError) as caught:
        [x + x for _ in range(3)]
    message = str(caught.value)
    for part in (
        "aten::add.Tensor", "fl:0", "reference:0", f"asked for {3 * MIB} bytes", "allocated by live tensors", "bytes reserved",
        "are free", "fragmented", "smaller batch", "set_per_process_memory_fraction",
    ):  # fmt: skip
        assert part in message
    with session():
        assert (x + x).sum().item() == 6 * N, "the pool goes on"


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("empty", lambda x: torch.empty(9 * N, device=DEVICE)),
        ("empty", lambda x: torch.zeros(9 * N, device=DEVICE)),
        ("empty_strided", lambda x: torch.empty_strided((2, 2), (9 * N, 1), device=DEVICE)),
        ("resize_", lambda x: x.resize_(9 * N)),
        ("add", lambda x: x.view(-1, 1) + x[:64]),
        ("empty_strided", lambda x: torch.ones(9 * N).to(DEVICE)),
    ],
)
def test_every_way_to_run_out(op: str, call: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(N, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match=rf"{op}.* on fl:0 .*fragmented"):
        call(x)
    assert x.shape == (N,)
    assert (x * 2).sum().item() == 2 * N


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: torch.mul(x, 2, out=x),
        lambda x: x.exp_(),
        lambda x: x.resize_(20 * N),
        lambda x: torch.add(x, 1, out=torch.empty(0, device=DEVICE)),
    ],
    ids=["in place", "out", "in place, a temporary", "resize_", "an out that grows"],
)
def test_nothing_is_half_written(write: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(5 * N, device=DEVICE)
    with session():
        with pytest.raises(torch.OutOfMemoryError):
            write(x)
        assert x.shape == (5 * N,)
        assert x.min().item() == x.max().item() == 1


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_in_backward() -> None:
    leaf = torch.ones(N, device=DEVICE, requires_grad=True)
    with session():
        loss = (leaf * 2 * 3).sum()
        hogs = [torch.empty(N, device=DEVICE) for _ in range(7)]  # and the leaf: all there is
        with pytest.raises(torch.OutOfMemoryError, match="aten::mul"):
            loss.backward()
        assert leaf.grad is None
        del hogs, loss
        (leaf * 2 * 3).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.min().item() == leaf.grad.max().item() == 6


@pytest.mark.usefixtures("little_memory")
def test_a_smaller_step_works_after_one_that_was_too_large() -> None:
    model = torch.nn.Linear(256, 256).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        model(torch.ones(batch, 256, device=DEVICE)).square().mean().backward()
        optimizer.step()

    before = model.weight.detach().cpu()
    with session():
        with pytest.raises(torch.OutOfMemoryError):
            step(6000)
        assert torch.equal(model.weight.cpu(), before)
        step(16)
    assert not torch.equal(model.weight.cpu(), before)


# Kernels that do what they must not --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, LARGE])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda x: x,
        lambda x: x[:],
        np.ascontiguousarray,
        lambda x: x.reshape(1, -1)[0],
        lambda x: np.broadcast_to(x, x.shape),
    ],
    ids=["itself", "view", "ascontiguousarray", "reshape", "broadcast_to"],
)
def test_a_kernel_that_returns_its_input_gets_a_copy(kernel: Any, size: int, vendors: Vendors) -> None:
    """Its memory is the tensor's, and goes back to the pool with that."""
    device = vendors(Kernel("aten::sin", lambda x: kernel(x))).device
    with flroute.enable(device, fallback="allow", default_device=False):
        for _ in range(3):  # the general path, then the hot one
            x = torch.full((size,), 7.0, device=device)
            y = torch.sin(x)
            assert y.data_ptr() != x.data_ptr()
            del x
            torch.full((size,), 9.0, device=device)
            assert y.eq(7.0).all().item()


def test_a_block_that_a_kernel_keeps_is_not_handed_out(vendors: Vendors) -> None:
    """A kernel may cache an array it made, and return views of it."""
    memory = HostMemory()
    kept = []

    def kernel(x: Any) -> Any:
        result = memory.empty(x.shape, x.dtype)
        result[...] = 3
        kept.append(result)
        return result[:]

    device = vendors(Kernel("aten::sin", kernel), memory=memory).device
    with flroute.enable(device, fallback="allow", default_device=False):
        x = torch.ones(LARGE, device=device)
        for _ in range(3):
            torch.sin(x)
        torch.full((LARGE,), 9.0, device=device)
    assert all((array == 3).all() for array in kept)
    addresses = {array.__array_interface__["data"][0] for array in kept}
    assert len(addresses) == 3
    kept.clear()
    del x
    assert memory.pool(0).stats().used == 0


@pytest.mark.parametrize("keep", [lambda kept, x: kept.append(x), lambda kept, x: kept.append(x[1:])])
def test_a_debugging_session_refuses_a_kernel_that_keeps_its_input(keep: Any, vendors: Vendors) -> None:
    """An array over a tensor's memory does not hold it: later the array would show what others write there."""
    kept: list[Any] = []

    def kernel(x: Any) -> Any:
        keep(kept, x)
        return x + 1

    device = vendors(Kernel("aten::sin", kernel)).device
    x = torch.ones(LARGE, device=device)
    with flroute.enable(device, fallback="allow", default_device=False, debug=True):
        for _ in range(3):
            with pytest.raises(flroute.KernelResultError, match=r"keeps an array .*float32.*array\.copy"):
                torch.sin(x)
    kept.clear()


def test_a_kernel_may_leave_a_cycle_behind(vendors: Vendors) -> None:
    def kernel(x: Any) -> Any:
        cycle: list[Any] = [x]
        cycle.append(cycle)
        return x + 1

    device = vendors(Kernel("aten::sin", kernel)).device
    with flroute.enable(device, fallback="allow", default_device=False, debug=True):
        assert torch.sin(torch.ones(3, device=device)).tolist() == [2, 2, 2]


# The process -------------------------------------------------------------------------------------------------------------


def test_tensors_may_outlive_everything() -> None:
    """At exit modules go first; memory that a late finalizer still reads is there."""
    code = f"""
import builtins, ctypes, torch, flroute
class Late:
    def __init__(self, tensor): self.tensor = tensor
    def __del__(self, print=print, read=ctypes.string_at):
        print("first byte:", read(self.tensor.data_ptr(), 1)[0], flush=True)
builtins.late = Late(torch.full(({MIB},), 7, dtype=torch.uint8, device="fl"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "first byte: 7" in done.stdout


def test_a_forked_child_has_memory_of_its_own() -> None:
    x = torch.ones(N, device=DEVICE)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            x.add_(1)
            y = x + x
            os.write(write, b"%d" % int(y.max().item()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"4"
    os.close(read)
    os.close(write)
    assert x.max().item() == 1


@pytest.mark.parametrize("warm", [False, True])
def test_a_kernel_for_whose_temporary_numpy_has_no_memory(warm: bool, vendors: Vendors) -> None:
    too_much = 2**56

    def neg(x: Any) -> Any:
        return np.negative(x) if x.flat[0] else np.empty(too_much, np.float64)

    made = vendors(Kernel("aten::neg", neg))
    full, empty = made.put(torch.ones(3)), made.put(torch.zeros(3))
    with flroute.enable(made.name, default_device=False):
        if warm:
            torch.neg(full)
        with pytest.raises(
            torch.OutOfMemoryError, match=rf"aten::neg on {made.device}.* asked for {8 * too_much} bytes"
        ):
            torch.neg(empty)
        assert torch.equal(torch.neg(full).cpu(), -torch.ones(3))
