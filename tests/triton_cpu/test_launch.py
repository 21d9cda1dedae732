"""Launching: threads, scratch memory, scopes, and every kind of bad input."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.driver import driver as triton_drivers

import flroute
from flroute.errors import DeviceError
from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.triton_cpu.launcher import Kernel


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + tl.program_id(0) * n + c, e / tl.sum(e, 0), mask=c < n)


@triton.jit
def inclusive_sums(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + i, tl.cumsum(tl.load(x + tl.program_id(0) * BLOCK + i), 0))


@triton.jit
def positive_or_stop(x, BLOCK: tl.constexpr):
    tl.device_assert(tl.load(x + tl.arange(0, BLOCK)) > 0, "must be positive")


@triton.jit
def say(x, BLOCK: tl.constexpr):
    tl.device_print("value is 100%", tl.load(x + tl.arange(0, BLOCK)))


@triton.jit
def scaled(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + i, tl.dot_scaled(tl.load(x + i), None, "bf16", tl.load(x + i), None, "bf16"))


@triton.jit
def assembly(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x + i, v)


@triton.jit
def broken(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK * 2)))


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flroute.reference_vendor.triton_cpu.launcher._WORTH_SPLITTING", 0.0)
    x = torch.randn(200, 300)
    outs = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out = torch.zeros(200, 300)
        softmax[(200,)](x, out, 300, BLOCK=512)
        softmax[(200,)](x, out, 300, BLOCK=512)  # the second launch is split
        outs.append(out)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    torch.testing.assert_close(outs[0], torch.softmax(x, -1))


def test_launches_from_many_threads() -> None:
    x = torch.randn(8, 64)
    softmax[(8,)](x, torch.zeros(8, 64), 64, BLOCK=64)
    inclusive_sums[(8,)](x, torch.zeros(8, 64), BLOCK=64)
    wrong: list[str] = []

    def work(seed: int) -> None:
        mine = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
        a, b = torch.zeros(8, 64), torch.zeros(8, 64)
        with triton_cpu.active():
            for _ in range(50):
                softmax[(8,)](mine, a, 64, BLOCK=64)
                inclusive_sums[(8,)](mine, b, BLOCK=64)
                if not torch.allclose(a, mine.softmax(-1), atol=1e-6) or not torch.allclose(
                    b, mine.cumsum(-1), atol=1e-4
                ):
                    wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_empty_grid_runs_nothing() -> None:
    out = torch.full((4, 64), 3.0)
    softmax[(0,)](torch.randn(4, 64), out, 64, BLOCK=64)
    softmax[(2, 0)](torch.randn(4, 64), out, 64, BLOCK=64)
    assert bool((out == 3).all())


@pytest.mark.parametrize("grid", [(-1,), (2**31,), (1, 2**40)])
def test_a_grid_out_of_range(grid: tuple[int, ...]) -> None:
    with pytest.raises(triton_cpu.LaunchError, match=r"kernel softmax: the grid .* is out of range"):
        softmax[grid](torch.randn(4, 64), torch.zeros(4, 64), 64, BLOCK=64)


def test_tensors_that_this_cpu_cannot_reach() -> None:
    with pytest.raises(
        triton_cpu.LaunchError, match="the argument x is on meta, whose memory this CPU cannot use"
    ):
        softmax[(1,)](torch.empty(64, device="meta"), torch.empty(64, device="meta"), 64, BLOCK=64)
    with pytest.raises(triton_cpu.LaunchError, match="the argument out is on meta, others are on cpu"):
        softmax[(1,)](torch.empty(64), torch.empty(64, device="meta"), 64, BLOCK=64)


def test_tensors_on_fl() -> None:
    x, out = torch.randn(4, 64).to("fl"), torch.zeros(4, 64, device="fl")
    softmax[(4,)](x, out, 64, BLOCK=64)
    torch.testing.assert_close(out.cpu(), torch.softmax(x.cpu(), -1))
    with flroute.enable(device="reference", fallback="error", default_device=False):
        doubled = x * 2
        softmax[(4,)](doubled, out, 64, BLOCK=64)
    torch.testing.assert_close(out.cpu(), torch.softmax(2 * x.cpu(), -1))
    with pytest.raises(
        triton_cpu.LaunchError, match="the argument out is on cpu, others are on fl; move it first"
    ):
        softmax[(4,)](x, torch.zeros(4, 64), 64, BLOCK=64)


def test_fl_tensors_out_of_the_hosts_reach() -> None:
    x = torch.randn(4, 64).to(flroute.device("opaque:0"))
    with pytest.raises(DeviceError, match=r"opaque:0.* is not visible to the host"):
        softmax[(4,)](x, x, 64, BLOCK=64)


def line_of(kernel: object, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_an_unsupported_op_names_itself_and_the_line() -> None:
    with pytest.raises(triton_cpu.UnsupportedKernelError) as caught:
        assembly[(1,)](torch.zeros(8), BLOCK=8)
    assert caught.value.op == "tt.elementwise_inline_asm"
    assert f"{Path(__file__).name}:{line_of(assembly, 'inline_asm')}" in str(caught.value)
    with pytest.raises(triton_cpu.UnsupportedKernelError, match=r"tt\.dot_scaled .*this op is not supported"):
        scaled[(1,)](torch.zeros(32 * 32, dtype=torch.bfloat16), torch.zeros(32 * 32), BLOCK=32)


def test_tritons_own_errors_pass_and_the_process_goes_on() -> None:
    with pytest.raises(triton.CompilationError, match="broken"):
        broken[(1,)](torch.zeros(8), BLOCK=8)
    with pytest.raises(triton.CompilationError, match="power of 2"):
        inclusive_sums[(1,)](torch.zeros(6), torch.zeros(6), BLOCK=6)
    out = torch.zeros(1, 64)
    inclusive_sums[(1,)](torch.ones(64), out, BLOCK=64)
    assert out[0, -1] == 64


def test_a_failing_device_assert_is_an_error() -> None:
    positive_or_stop[(1,)](torch.ones(8), BLOCK=8, debug=True)
    with pytest.raises(
        triton_cpu.TritonCpuError,
        match=rf"device_assert failed at .*:{line_of(positive_or_stop, 'device_assert')}: must be positive",
    ):
        positive_or_stop[(1,)](torch.arange(8.0), BLOCK=8, debug=True)
    positive_or_stop[(1,)](torch.ones(8), BLOCK=8, debug=True)


def test_device_print(capfd: pytest.CaptureFixture[str]) -> None:
    say[(1,)](torch.tensor([1.5, -2.0]), BLOCK=2)
    import ctypes

    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out.splitlines() == [
        "pid (0, 0, 0) idx (0) value is 100%: 1.500000",
        "pid (0, 0, 0) idx (1) value is 100%: -2.000000",
    ]


def test_wrong_arguments_to_the_direct_path() -> None:
    kernel = inclusive_sums.warmup(torch.zeros(64), torch.zeros(64), BLOCK=64, grid=(1,))
    kernel._init_handles()
    direct: Kernel = kernel.function
    x, out = torch.ones(64), torch.zeros(64)
    direct.launch((1,), (x.data_ptr(), out.data_ptr()))
    assert torch.equal(out, torch.arange(1.0, 65))
    with pytest.raises(
        triton_cpu.LaunchError, match=r"kernel inclusive_sums: .*it takes \(ptr<f32>, ptr<f32>\)"
    ):
        direct.launch((1,), (x.data_ptr(), 1.5))


def test_only_this_thread_sees_the_driver() -> None:
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(triton_drivers.active)
        except RuntimeError as error:  # no GPU: Triton's own answer
            seen.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert type(triton_drivers.active).__module__ == "flroute.reference_vendor.triton_cpu.driver"
    assert "triton_cpu" not in type(seen[0]).__module__


SCRIPT = """
import sys, gc
import torch, triton
from triton import backends
from triton.runtime.driver import DriverConfig, driver
sys.path.insert(0, {folder!r})
import flroute
from flroute.errors import DeviceError
from flroute.reference_vendor import triton_cpu
assert "triton" in sys.modules and type(driver) is DriverConfig
before = set(backends.backends)
import test_launch
with triton_cpu.active():
    out = torch.zeros(1, 64)
    test_launch.inclusive_sums[(1,)](torch.ones(64), out, BLOCK=64)
assert type(driver) is DriverConfig and set(backends.backends) == before
test_launch.inclusive_sums.device_caches.clear()
gc.collect()
try:
    test_launch.inclusive_sums[(1,)](torch.ones(64), out, BLOCK=64)
except RuntimeError as error:
    print("as before:", error)
"""


def test_outside_the_scope_triton_is_as_it_was() -> None:
    script = SCRIPT.format(folder=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "as before: 0 active drivers" in done.stdout or torch.cuda.is_available()
    assert "Exception ignored" not in done.stderr


OTHER_RELEASE = """
import triton
triton.__version__ = {version!r}
from flroute.reference_vendor import triton_cpu
try:
    triton_cpu.active
except triton_cpu.VersionError as error:
    print(error)
"""


@pytest.mark.parametrize("version", ["3.1.0", "3.10.0", "4.0.0"])
def test_another_release_of_triton_is_refused(version: str) -> None:
    script = OTHER_RELEASE.format(version=version)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(
        f"Triton {version} is installed; kernels are compiled for the CPU with 3.8, 3.9"
    )
    assert "install one of these" in done.stdout
