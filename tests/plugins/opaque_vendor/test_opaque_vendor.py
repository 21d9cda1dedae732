"""The vendor by itself: memory, copies, kernels. What flroute makes of it is tested in tests/."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from flroute_opaque_vendor import kernels
from flroute_opaque_vendor.memory import ALIGNMENT, MEMORY, OpaqueMemory
from hypothesis import given
from hypothesis import strategies as st

from flroute.vendor import DeviceArray, Unsupported

CAPACITY = 64 * ALIGNMENT


def upload(host: np.ndarray) -> DeviceArray:
    """A row-major device array with the values of ``host``."""
    host = np.ascontiguousarray(host, np.float32)
    address = MEMORY.allocate(0, max(host.nbytes, 1))
    MEMORY.copy_from_host(0, host.ctypes.data, address, host.nbytes)
    strides = tuple(stride // 4 for stride in host.strides)
    return DeviceArray(address, host.shape, strides, torch.float32, 0)


def download(array: DeviceArray) -> np.ndarray:
    """The values of a row-major device array."""
    assert array.is_contiguous
    host = np.empty(array.shape, np.float32)
    MEMORY.copy_to_host(0, array.address, host.ctypes.data, host.nbytes)
    return host


def test_host_access_faults() -> None:
    code = (
        "import ctypes\n"
        "from flroute_opaque_vendor.memory import MEMORY\n"
        "address = MEMORY.allocate(0, 8)\n"
        "ctypes.string_at(address, 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -11, done.stderr.decode()


def test_blocks_are_aligned_apart_and_on_their_device() -> None:
    memory = OpaqueMemory(devices=2, capacity=CAPACITY)
    blocks = [memory.allocate(device, nbytes) for device in (0, 1) for nbytes in (1, 64, 65)]
    assert all((block - blocks[0]) % ALIGNMENT == 0 for block in blocks)
    assert np.diff(blocks[:3]).tolist() == [64, 64]
    assert blocks[3] - blocks[0] == CAPACITY
    assert memory.used(0) == memory.used(1) == 64 + 64 + 128


def test_first_fit_reuses_the_first_hole() -> None:
    memory = OpaqueMemory(devices=1, capacity=CAPACITY)
    first, second, _third = (memory.allocate(0, 128) for _ in range(3))
    memory.free(0, first, 128)
    assert memory.allocate(0, 64) == first
    assert memory.allocate(0, 128) > second


def test_full_memory_raises_and_recovers() -> None:
    memory = OpaqueMemory(devices=1, capacity=CAPACITY)
    blocks = [memory.allocate(0, ALIGNMENT) for _ in range(64)]
    with pytest.raises(MemoryError, match="no 64 bytes"):
        memory.allocate(0, 1)
    for block in blocks[::2] + blocks[1::2]:
        memory.free(0, block, ALIGNMENT)
    assert memory.allocate(0, CAPACITY) == blocks[0], "neighbours must merge to one range again"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500), st.integers(0, 100)), max_size=60))
def test_any_order_of_allocate_and_free(steps: list[tuple[bool, int, int]]) -> None:
    memory = OpaqueMemory(devices=1, capacity=CAPACITY)
    live: dict[int, int] = {}
    for is_free, nbytes, which in steps:
        if is_free and live:
            address = sorted(live)[which % len(live)]
            memory.free(0, address, live.pop(address))
            continue
        try:
            address = memory.allocate(0, nbytes)
        except MemoryError:
            continue
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        assert all(address + size <= other or address >= other + used for other, used in live.items())
        live[address] = size
    assert memory.used(0) == sum(live.values())
    for address, nbytes in live.items():
        memory.free(0, address, nbytes)
    memory.allocate(0, CAPACITY)


def test_threads_share_the_memory() -> None:
    memory = OpaqueMemory(devices=1, capacity=2**20)

    def work() -> None:
        for _ in range(300):
            memory.free(0, memory.allocate(0, 256), 256)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.used(0) == 0


def test_copies_move_bytes_and_are_counted() -> None:
    memory = OpaqueMemory(devices=2, capacity=CAPACITY)
    source, target = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    there, other = memory.allocate(0, 64), memory.allocate(1, 64)
    memory.copy_from_host(0, source.ctypes.data, there, 64)
    memory.copy_on_device(0, there, 1, other, 64)
    memory.copy_to_host(1, other, target.ctypes.data, 32)
    assert target[:8].tolist() == source[:8].tolist()
    assert not target[8:].any()
    counts = [(way.calls, way.nbytes) for way in (memory.from_host, memory.on_device, memory.to_host)]
    assert counts == [(1, 64), (1, 64), (1, 32)]


def test_a_host_address_is_refused() -> None:
    host = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="not an address"):
        MEMORY.copy_to_host(0, host.ctypes.data, host.ctypes.data, 16)


def test_kernels_compute() -> None:
    a, b = np.arange(6.0).reshape(2, 3) - 3, np.arange(3.0)
    device_a, device_b = upload(a), upload(b)
    assert np.array_equal(download(kernels.add(device_a, device_b, alpha=2)), a + 2 * b)
    assert np.array_equal(download(kernels.multiply(device_a, device_b)), a * b)
    assert np.array_equal(download(kernels.relu(device_a)), np.maximum(a, 0))
    assert np.array_equal(download(kernels.add(device_a, 1.5)), a + 1.5)
    assert np.array_equal(download(kernels.multiply(2, device_a)), 2 * a)
    transposed = DeviceArray(device_a.address, (3, 2), (1, 3), torch.float32, 0)
    assert np.array_equal(download(kernels.matrix_multiply(device_a, transposed)), a @ a.T)
    assert np.array_equal(download(kernels.add(transposed, transposed)), 2 * a.T)


def test_fill_writes_only_what_it_is_given() -> None:
    whole = upload(np.zeros((3, 4)))
    column = DeviceArray(whole.address + 4, (3,), (4,), torch.float32, 0)
    assert kernels.fill(column, 7) is None
    expected = np.zeros((3, 4))
    expected[:, 1] = 7
    assert np.array_equal(download(whole), expected)


def test_empty_arrays() -> None:
    empty = upload(np.zeros((0, 3)))
    assert kernels.add(empty, upload(np.ones(3))).shape == (0, 3)
    assert not download(kernels.matrix_multiply(upload(np.zeros((2, 0))), empty)).any()


@pytest.mark.parametrize(
    "call",
    [
        lambda a: kernels.add(a, upload(np.ones(5))),
        lambda a: kernels.matrix_multiply(a, a),
        lambda a: kernels.fill(a, 1e300),
        lambda a: kernels.multiply(a, 1j),  # type: ignore[arg-type]
    ],
)
def test_what_a_kernel_cannot_do_it_says_before_it_writes(call) -> None:  # type: ignore[no-untyped-def]
    used = MEMORY.used(0)
    array = upload(np.ones((2, 3)))
    with pytest.raises(Unsupported):
        call(array)
    assert np.array_equal(download(array), np.ones((2, 3)))
    assert MEMORY.used(0) - used <= 3 * ALIGNMENT, "no result may be left behind"
