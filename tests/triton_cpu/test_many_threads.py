"""Launches from many threads, and one launch split over several."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import triton
import triton.language as tl

from flroute.reference_vendor.triton_cpu import TritonCpuError, direct, launcher, team
from flroute.reference_vendor.triton_cpu.launcher import Kernel

WIDTH = 64


@triton.jit
def add(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def softmax(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x + i) - tl.max(tl.load(x + i), 0))
    tl.store(out + i, e / tl.sum(e, 0))


@triton.jit
def sums(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def outer(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.sum(tl.load(x + i)[:, None] * tl.load(y + i)[None, :], 1))


@triton.jit
def ordered(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def visit(visits):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.atomic_add(visits + (z * tl.num_programs(1) + y) * tl.num_programs(0) + x, 1)


@triton.jit
def slow(out, n):
    total = tl.program_id(0).to(tl.float32)
    for _ in range(n):
        total = total * 0.5 + 1
    tl.store(out + tl.program_id(0), total)


@triton.jit(debug=True)
def all_but(out, forbidden):
    tl.device_assert(tl.program_id(0) != forbidden, "not this one")
    tl.store(out + tl.program_id(0), tl.program_id(0))


def load(name: str) -> Kernel:
    return direct.load(f"{__name__}:{name}", dict.fromkeys(("x", "y", "out"), "*fp32"), {"BLOCK": WIDTH})


@pytest.fixture(autouse=True)
def _scratch_is_not_overrun() -> None:
    """In place of memory for each launch, which other tests have: here it is the threads' own."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return {name: load(name) for name in ("add", "softmax", "sums", "outer", "ordered")}


def numbers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(rows).standard_normal((2, rows, WIDTH)).astype(np.float32)
    return x, y


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:  # whatever it is, the main thread raises it
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_ten_thousand_launches_of_five_kernels_from_four_threads(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them are split over two threads more."""
    monkeypatch.setattr(launcher, "_WORTH_SPLITTING", 0.0)
    x, y = numbers(8)
    expected = {}
    for name, kernel in kernels.items():
        expected[name] = np.empty_like(x)
        kernel.launch((8,), (x, y, expected[name]))
    assert np.allclose(expected["softmax"].sum(1), 1)
    assert np.array_equal(expected["ordered"], np.sort(x, 1))
    assert np.allclose(expected["outer"], x * y.sum(1, keepdims=True), atol=1e-4)

    def work(seed: int) -> None:
        names = list(kernels)
        outs = {name: np.empty_like(x) for name in names}
        for turn in range(2500):
            name = names[(turn + seed) % 5]
            outs[name].fill(np.nan)
            kernels[name].launch((8,), (x, y, outs[name]), threads=1 + 2 * (turn % 2))
            assert np.array_equal(outs[name], expected[name]), (name, turn)

    in_threads(4, work)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 1000])
def test_results_do_not_depend_on_the_number_of_threads(
    kernels: dict[str, Kernel], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_WORTH_SPLITTING", 0.0)
    x, y = numbers(rows)
    for name, kernel in kernels.items():
        outs = []
        for threads in (1, 2, 2, 5):
            outs.append(np.full_like(x, np.nan))
            kernel.launch((rows,), (x, y, outs[-1]), threads)
        assert all(np.array_equal(out, outs[0]) for out in outs), name


@pytest.mark.parametrize("grid", [(7,), (1, 300), (5, 3), (2, 3, 4), (1000,)], ids=str)
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_every_program_runs_once(grid: tuple[int, ...], threads: int, kernels: dict[str, Kernel]) -> None:
    kernel = direct.load(f"{__name__}:visit", {"visits": "*i32"})
    for _ in range(5):
        visits = np.zeros(grid[::-1], np.int32)
        kernel._seconds = 1.0  # a program is worth a thread
        kernel.launch(grid, (visits,), threads)
        assert (visits == 1).all()


def test_little_work_is_not_split(kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_WORTH_SPLITTING", float("inf"))
    monkeypatch.setattr(launcher, "team_of", None)  # asking for one would raise
    x, y = numbers(100)
    for _ in range(2):  # the first launch measures
        out = np.zeros_like(x)
        kernels["add"].launch((100,), (x, y, out), threads=4)
        assert np.array_equal(out, x + y)


def test_a_failing_program_is_the_launchs_failure(kernels: dict[str, Kernel]) -> None:
    """Whichever thread ran it; and the next launch knows nothing of it."""
    kernel = direct.load(f"{__name__}:all_but", {"out": "*i32", "forbidden": "i32"})
    out = np.zeros(200, np.int32)
    for forbidden in range(0, 200, 10):
        kernel._seconds = 1.0
        with pytest.raises(TritonCpuError, match=r"kernel all_but: device_assert failed at .*: not this one"):
            kernel.launch((200,), (out, forbidden), threads=3)
        kernel._seconds = 1.0
        kernel.launch((200,), (out, -1), threads=3)
    assert np.array_equal(out, np.arange(200))


def test_threads_that_never_come_hold_nobody_up(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = team.Team()  # nobody is started
    monkeypatch.setattr(launcher, "team_of", lambda threads: absent)
    x, y = numbers(100)
    for _ in range(50):
        out = np.full_like(x, np.nan)
        kernels["add"]._seconds = 1.0
        kernels["add"].launch((100,), (x, y, out), threads=4)
        assert np.array_equal(out, x + y)
        assert absent.field("left") == absent.field("busy") == 0
        assert absent.field("ticket") % 2**32 == 0  # no seat is left to take


def test_a_launch_returns_when_every_thread_is_done(kernels: dict[str, Kernel]) -> None:
    """The programs take long enough for others to join, and for the last of them to be at work when this thread is not."""
    kernel = direct.load(f"{__name__}:slow", {"out": "*fp32", "n": "i32"})
    for _ in range(30):
        out = np.zeros(32, np.float32)
        kernel._seconds = 1.0
        kernel.launch((32,), (out, 100_000), threads=2)
        assert (out == 2).all()


def test_idle_threads_sleep(kernels: dict[str, Kernel]) -> None:
    own = team.Team()
    own.grow(3)
    own.grow(2)
    assert own.members == 3
    while own.field("asleep") != 3:  # a failure is a test that never ends
        time.sleep(0.001)


def test_a_launch_during_another_runs_in_its_own_thread(
    kernels: dict[str, Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = team.Team()
    ctypes.c_int64.from_address(taken.address + 8 * team.NAMES.index("busy")).value = 1
    monkeypatch.setattr(launcher, "team_of", lambda threads: taken)
    x, y = numbers(100)
    out = np.full_like(x, np.nan)
    kernels["add"]._seconds = 1.0
    kernels["add"].launch((100,), (x, y, out), threads=4)
    assert np.array_equal(out, x + y)
    assert taken.field("ticket") == 0  # nothing was offered


LEAVING = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_many_threads import load, numbers
x, y = numbers(1000)
kernel, out = load("add"), np.empty_like(x)
for _ in range(20):
    kernel._seconds = 1.0
    kernel.launch((1000,), (x, y, out), threads=4)
assert np.array_equal(out, x + y)
{wait}
"""


@pytest.mark.parametrize("wait", ["", "import time; time.sleep(0.05)"], ids=["looking", "asleep"])
def test_a_process_ends_while_threads_look_or_sleep(wait: str) -> None:
    script = LEAVING.format(folder=str(Path(__file__).parent), wait=wait)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_a_forked_child_has_threads_of_its_own(kernels: dict[str, Kernel]) -> None:
    x, y = numbers(100)
    kernel = kernels["add"]

    def launch() -> bool:
        out = np.full_like(x, np.nan)
        kernel._seconds = 1.0
        kernel.launch((100,), (x, y, out), threads=3)
        return np.array_equal(out, x + y)

    assert launch()
    child = os.fork()
    if child == 0:
        os._exit(0 if launch() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert launch()


def test_scratch_memory_is_each_threads_own() -> None:
    found: list[int] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        barrier.wait()
        mine = launcher._scratch(1000 * (seed + 1))
        assert launcher._scratch(8) == mine
        found.append(mine)
        barrier.wait()

    in_threads(4, work)
    assert len(set(found)) == 4
    assert all(address % 64 == 0 for address in found)


def test_kernels_load_in_many_threads_at_once(kernels: dict[str, Kernel]) -> None:
    x, y = numbers(4)

    def work(seed: int) -> None:
        for name in [*kernels][seed:] + [*kernels][:seed]:
            a, b = np.empty_like(x), np.empty_like(x)
            load(name).launch((4,), (x, y, a))
            kernels[name].launch((4,), (x, y, b))
            assert np.array_equal(a, b)

    in_threads(5, work)
