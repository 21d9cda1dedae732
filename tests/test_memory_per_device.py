"""Each device has memory of its own: what is allocated, kept, limited and given back on one says nothing about another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import flroute
from flroute.vendor import HostMemory, Kernel
from support import COPY, Vendors, throw_away_vendors

MIB = 1 << 20
LARGE = (MIB,)  # float32: 4 MiB, from the pool

vendors = pytest.fixture(throw_away_vendors)


def reserved() -> list[int]:
    return [torch.fl.memory_reserved(index) for index in (0, 1)]


def allocated() -> list[int]:
    return [torch.fl.memory_allocated(index) for index in (0, 1)]


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    gc.collect()  # what tests before have left in cycles would die in the middle of one here
    torch.fl.empty_cache()


RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": torch.empty_like,
    "add": lambda x: x + 1,
    "exp": torch.exp,
    "cat": lambda x: torch.cat([x[:10], x[10:]]),
    "bfloat16": lambda x: x.bfloat16(),
    "sort": lambda x: x.sort().values,
    "fallback": lambda x: torch.fft.fft(x).real.contiguous(),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", RESULTS)
def test_results_come_from_the_devices_own_memory(name: str, index: int) -> None:
    with flroute.enable("reference", fallback="allow", default_device=False):
        x = torch.ones(LARGE, device=f"fl:{index}")
        for _ in range(3):  # on the general path, and on the hot one
            kept, used = reserved(), allocated()
            result = RESULTS[name](x)
            assert allocated()[1 - index] == used[1 - index]
            assert allocated()[index] >= used[index] + result.nbytes
            assert reserved()[1 - index] == kept[1 - index]
            del result
        del x
    assert torch.fl.memory_stats(1 - index)["active_bytes.all.current"] == 0


def test_what_is_kept_is_kept_by_one() -> None:
    before = reserved()
    x = torch.empty(LARGE, device="fl:1")
    del x
    assert reserved()[0] == before[0]
    assert reserved()[1] >= before[1] + 4 * MIB
    torch.fl.empty_cache()
    assert reserved() == before


@pytest.mark.parametrize("index", [0, 1])
def test_a_limit_is_one_devices(index: int) -> None:
    total = torch.fl.get_device_properties(index).total_memory
    torch.fl.set_per_process_memory_fraction(2 * MIB / total, index)
    try:
        with flroute.enable("reference", fallback="error", default_device=False):
            with pytest.raises(torch.OutOfMemoryError, match=f"fl:{index} "):
                torch.empty(LARGE, device=f"fl:{index}")
            other = torch.ones(LARGE, device=f"fl:{1 - index}")
            assert (other + other)[0].item() == 2
            small = torch.ones(10, device=f"fl:{index}")
            with pytest.raises(torch.OutOfMemoryError, match=f"fl:{index} "):
                small.expand(MIB // 10, 10).contiguous()
            with pytest.raises(torch.OutOfMemoryError, match=f"fl:{index} "):
                other.to(f"fl:{index}")
    finally:
        torch.fl.set_per_process_memory_fraction(1.0, index)
    assert torch.ones(LARGE, device=f"fl:{index}")[0].item() == 1


def test_one_full_device_leaves_the_others_room(vendors: Vendors) -> None:
    made = vendors(COPY, memory=HostMemory(limit=8 * MIB))
    first, second = (device.torch_device for device in made.devices)
    held = torch.empty(6 * MIB, dtype=torch.uint8, device=first)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(6 * MIB, dtype=torch.uint8, device=first)
    other = torch.empty(6 * MIB, dtype=torch.uint8, device=second)
    assert held.data_ptr() != other.data_ptr()


def test_kernels_of_two_devices_in_two_threads(vendors: Vendors) -> None:
    """Which device a kernel runs for is a matter of the thread, and of the call that is innermost."""
    memory = HostMemory()
    barrier = threading.Barrier(2, timeout=60)

    def relu(x: Any) -> Any:
        out = memory.empty(x.shape, x.dtype)
        barrier.wait()
        out[...] = x
        return out

    made = vendors(COPY, Kernel("aten::relu", relu), memory=memory)
    results: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        x = torch.ones(LARGE, device=made.devices[index].torch_device)
        with flroute.enable(made.name, fallback="allow", default_device=False):
            results[index] = torch.relu(x)
        del x

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in (0, 1):
        assert memory.pool(index).stats().used == 4 * MIB
        assert results[index].device == made.devices[index].torch_device


def test_an_error_in_a_kernel_does_not_leave_its_device_behind(vendors: Vendors) -> None:
    memory = HostMemory()

    def relu(x: Any) -> Any:
        raise ValueError("no")

    made = vendors(COPY, Kernel("aten::relu", relu), memory=memory)
    with (
        flroute.enable(made.name, fallback="allow", default_device=False),
        pytest.raises(ValueError, match="no"),
    ):
        torch.relu(torch.ones(LARGE, device=made.devices[1].torch_device))
    array = memory.empty((4 * MIB,), torch.ones(1, dtype=torch.uint8).numpy().dtype)
    assert memory.pool(0).stats().used == array.nbytes


# -- what there is to ask


def test_summary_snapshot_and_stats_agree() -> None:
    x = torch.empty(LARGE, device="fl:1")
    stats = torch.fl.memory_stats(1)
    assert stats["active_bytes.all.peak"] >= stats["active_bytes.all.current"] >= x.nbytes
    assert stats["allocated_bytes.all.peak"] == torch.fl.max_memory_allocated(1)
    assert stats["reserved_bytes.all.peak"] == torch.fl.max_memory_reserved(1) >= torch.fl.memory_reserved(1)
    nested = torch.fl.memory_stats_as_nested_dict(1)
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
    summary = torch.fl.memory_summary(1)
    assert "fl:1 (reference:1)" in summary
    for name, number in stats.items():
        assert f"{name} " in summary
        assert f"{number:,}" in summary
    assert "pool" not in torch.fl.memory_summary(1, abbreviated=True)
    segments = [segment for segment in torch.fl.memory_snapshot() if segment["device"] == 1]
    assert sum(segment["total_size"] for segment in segments) >= x.nbytes
    assert (
        sum(segment["allocated_size"] for segment in segments)
        == torch.fl.memory_stats(1)["active_bytes.all.current"]
    )
    holding = [
        block
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["address"] == x.data_ptr()
    ]
    assert [block["size"] >= x.nbytes for block in holding] == [True]
    for segment in segments:
        ends = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == ends, "without gaps"
            ends += block["size"]
        assert ends == segment["address"] + segment["total_size"]


def test_free_and_total() -> None:
    free, total = torch.fl.mem_get_info(1)
    assert total == torch.fl.get_device_properties(1).total_memory
    x = torch.empty(LARGE, device="fl:1")
    assert torch.fl.mem_get_info(1)[0] <= free - x.nbytes
    assert torch.fl.device_memory_used(1) == total - torch.fl.mem_get_info(1)[0]


def test_peaks_start_again() -> None:
    torch.empty(LARGE, device="fl:1")
    torch.fl.empty_cache()
    assert torch.fl.max_memory_reserved(1) >= 4 * MIB > torch.fl.memory_reserved(1)
    torch.fl.reset_peak_memory_stats(1)
    assert torch.fl.max_memory_reserved(1) == torch.fl.memory_reserved(1)
    assert torch.fl.max_memory_allocated(1) == torch.fl.memory_allocated(1)


def test_requests_are_counted() -> None:
    torch.fl.reset_accumulated_memory_stats(1)
    for _ in range(5):
        torch.empty(LARGE, device="fl:1")
    stats = torch.fl.memory_stats(1)
    assert (stats["pool.requests"], stats["pool.new_segments"]) == (5, 1)


def test_room_made_by_giving_back_what_is_not_used_is_counted() -> None:
    torch.fl.reset_accumulated_memory_stats(1)
    torch.fl.set_per_process_memory_fraction(24 * MIB / torch.fl.get_device_properties(1).total_memory, 1)
    try:
        for megabytes in (12, 20, 14):
            torch.empty(megabytes * MIB, dtype=torch.uint8, device="fl:1")
        assert torch.fl.memory_stats(1)["num_alloc_retries"] == 1
    finally:
        torch.fl.set_per_process_memory_fraction(1.0, 1)


@pytest.mark.parametrize("fraction", ["a", None, True])
def test_a_fraction_is_a_number(fraction: Any) -> None:
    with pytest.raises(TypeError, match=f"must be a number between 0 and 1, not {fraction!r}"):
        torch.fl.set_per_process_memory_fraction(fraction, 1)
    assert torch.fl.get_per_process_memory_fraction(1) == 1.0


def test_a_fraction_comes_back() -> None:
    assert torch.fl.get_per_process_memory_fraction(1) == 1.0
    torch.fl.set_per_process_memory_fraction(0.25, 1)
    try:
        assert torch.fl.get_per_process_memory_fraction(1) == pytest.approx(0.25)
        assert torch.fl.get_per_process_memory_fraction(0) == 1.0
    finally:
        torch.fl.set_per_process_memory_fraction(1.0, 1)


def test_a_device_without_a_pool() -> None:
    opaque = flroute.device("opaque:0")
    x = torch.ones(10, device=opaque)
    assert torch.fl.memory_reserved(opaque) == torch.fl.memory_allocated(opaque) >= x.nbytes
    stats = torch.fl.memory_stats(opaque)
    assert (stats["active_bytes.all.current"], stats["num_alloc_retries"]) == (
        torch.fl.memory_allocated(opaque),
        0,
    )
    assert opaque.type in torch.fl.memory_summary(opaque)
    assert torch.fl.get_per_process_memory_fraction(opaque) == 1.0
    torch.fl.reset_peak_memory_stats(opaque)
    torch.fl.reset_accumulated_memory_stats(opaque)
    with torch.fl.device(opaque):
        assert torch.fl.get_allocator_backend() == "vendor"
    assert torch.fl.get_allocator_backend() == "pool"
