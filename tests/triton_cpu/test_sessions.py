"""Triton's kernels inside flroute's sessions, launched as usual: what they may be given, and what nobody else notices."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.driver import DriverConfig
from triton.runtime.driver import driver as triton_drivers
from triton.runtime.jit import KernelInterface

import flroute
from flroute.errors import DeviceError
from flroute.reference_vendor.triton_cpu import LaunchError, UnsupportedKernelError

TRITONS_OWN = KernelInterface.__getitem__


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (16, 64)], key=["n"])
@triton.jit
def tuned(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])})
@triton.jit
def guessed(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


@triton.jit
def assembly(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(x + i, v)


@triton.jit
def undefined(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), missing)  # noqa: F821


@pytest.fixture(autouse=True)
def _active(_own_cache: None) -> None:
    """In place of the scope that tests run in elsewhere: here nobody opens one."""


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


LAUNCHES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "jit": lambda x, out: scale[grid](x, out, 100, 3.0, BLOCK=16),
    "by keyword": lambda x, out: scale[(7,)](x=x, out=out, n=100, factor=3.0, BLOCK=16),
    "autotune": lambda x, out: tuned[grid](x, out, 100, 3.0),
    "heuristics": lambda x, out: guessed[grid](x, out, 100, 3.0),
}


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_kernel_is_launched_as_usual(launch: Callable[..., Any]) -> None:
    with flroute.enable("reference", fallback="error"):
        x, out = torch.arange(100.0), torch.zeros(100)
        launch(x, out)
        assert torch.equal(out, 3 * x)


def test_in_threads_of_the_sessions_and_in_others() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((100,), float(seed), device="fl")
        out = torch.zeros(100, device="fl")
        scale[grid](x, out, 100, 2.0, BLOCK=16)
        if not bool((out == 2 * seed).all()):
            wrong.append(seed)

    with flroute.enable("reference"):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_an_op_of_a_models_own_has_a_gradient() -> None:
    @torch.library.triton_op("flroute_test::tripled", mutates_args={})
    def tripled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(scale)[(4,)](x, out, x.numel(), 3.0, BLOCK=32)
        return out

    tripled.register_autograd(lambda ctx, grad: tripled(grad))
    with flroute.enable("reference", fallback="error"):
        x = torch.randn(100, requires_grad=True)
        (tripled(x) * x).sum().backward()
        assert torch.allclose(x.grad, 6 * x)


# -- no harm to others ----------------------------------------------------------------------------------------------


def others_see() -> object:
    assert type(triton_drivers) is DriverConfig
    try:
        return triton_drivers.active
    except RuntimeError as error:  # no GPU: Triton's own answer
        return str(error)


def test_a_session_changes_nothing_for_who_asks_triton() -> None:
    before, finders = others_see(), list(sys.meta_path)
    with flroute.enable("reference"):
        assert others_see() == before
        with contextlib.suppress(KeyError), flroute.enable("reference"):
            scale[grid](torch.ones(8), torch.ones(8), 8, 2.0, BLOCK=16)
            assert others_see() == before
            raise KeyError
        assert KernelInterface.__getitem__ is not TRITONS_OWN
    assert KernelInterface.__getitem__ is TRITONS_OWN
    assert sys.meta_path == finders
    assert others_see() == before


def test_a_session_on_another_vendors_device_leaves_triton_alone() -> None:
    with flroute.enable("opaque"):
        assert KernelInterface.__getitem__ is TRITONS_OWN


@pytest.mark.skipif(torch.cuda.is_available(), reason="here host tensors are for the GPU's driver to refuse")
def test_host_tensors_go_where_they_always_went() -> None:
    with (
        flroute.enable("reference", default_device=False),
        pytest.raises(RuntimeError, match="0 active drivers"),
    ):
        scale[(1,)](torch.ones(8), torch.ones(8), 8, 2.0, BLOCK=16)


LATE = """
import sys
import torch, flroute
sys.path.insert(0, sys.argv[1])
finders = list(sys.meta_path)
with flroute.enable("reference", default_device=False):
    assert "triton" not in sys.modules
    import test_sessions
    x, out = torch.ones(8).to("fl"), torch.zeros(8).to("fl")
    test_sessions.scale[(1,)](x, out, 8, 2.0, BLOCK=16)
    assert out.cpu().tolist() == [2.0] * 8
assert sys.meta_path == finders
from triton.runtime.jit import KernelInterface
assert KernelInterface.__getitem__.__module__ == "triton.runtime.jit"
with flroute.enable("reference", default_device=False):
    test_sessions.scale[(1,)](out, x, 8, 2.0, BLOCK=16)
    assert x.cpu().tolist() == [4.0] * 8
assert KernelInterface.__getitem__.__module__ == "triton.runtime.jit"
"""


def test_triton_may_come_while_a_session_is_open_and_not_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(Path(__file__).parent)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["triton", "llvmlite"])
def test_without_what_it_takes_sessions_are_as_ever(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
import flroute, torch
with flroute.enable("reference", fallback="error"):
    assert torch.relu(torch.ones(2)).tolist() == [1, 1]
    if {missing!r} == "llvmlite":
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import triton, triton.language as tl
        from flroute.reference_vendor.triton_cpu import VersionError
        from flroute.reference_vendor.triton_cpu.samples import negate
        try:
            negate[(1,)](torch.ones(4), 4, BLOCK=4)
        except VersionError as error:
            assert "takes llvmlite: pip install 'flroute[triton]'" in str(error), error
        else:
            raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- bad input ------------------------------------------------------------------------------------------------------


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_every_bad_input_is_an_error_in_words_and_the_process_goes_on() -> None:
    here = Path(__file__).name
    with flroute.enable("reference", default_device=False):
        x, out, host = torch.arange(8.0).to("fl"), torch.zeros(8).to("fl"), torch.zeros(8)
        with pytest.raises(
            UnsupportedKernelError,
            match=rf"kernel assembly: tt\.elementwise_inline_asm at .*{here}:{line_of(assembly, 'inline_asm')}",
        ):
            assembly[(1,)](x, BLOCK=8)
        with pytest.raises(
            LaunchError, match="kernel scale: the argument out is on cpu, others are on fl; move it first"
        ):
            scale[(1,)](x, host, 8, 2.0, BLOCK=8)
        with pytest.raises(
            LaunchError, match=r"kernel scale: the argument out is on fl:0, others are on cpu; move it first"
        ):
            scale[(1,)](host, out, 8, 2.0, BLOCK=8)
        for wrong in ((-1,), (2**31,), (1, -5)):
            with pytest.raises(LaunchError, match=r"kernel scale: the grid .* is out of range"):
                scale[wrong](x, out, 8, 2.0, BLOCK=8)
        with pytest.raises(triton.CompilationError, match=r"(?s)scale.*power of 2"):
            scale[(1,)](x, out, 8, 2.0, BLOCK=6)
        with pytest.raises(triton.CompilationError, match=r"(?s)at 2:.*def undefined.*missing"):
            undefined[(1,)](x, BLOCK=8)
        with pytest.raises(triton.CompilationError, match=r"(?s)at \d+:.*def scale"):
            scale[(1,)](x.bool(), x, 8, x, BLOCK=8)  # a pointer where a number belongs
        for kernel, block in ((scale, {"BLOCK": 8}), (tuned, {})):
            with pytest.raises(
                LaunchError,
                match=r"kernel \w+: the argument out is of torch\.complex64, which Triton does not have",
            ):
                kernel[(1,)](x, out.to(torch.complex64), n=8, factor=2.0, **block)
        assert not out.any()
        assert not host.any()
        scale[(1,)](x, out, 8, 2.0, BLOCK=8)
        assert torch.equal(out, 2 * x)


def test_memory_out_of_the_hosts_reach() -> None:
    x = torch.ones(8).to(flroute.device("opaque:0"))
    with (
        flroute.enable("reference"),
        pytest.raises(DeviceError, match=r"opaque:0.* is not visible to the host"),
    ):
        scale[(1,)](x, x, 8, 2.0, BLOCK=8)
