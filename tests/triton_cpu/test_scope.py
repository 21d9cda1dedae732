"""The scope in which Triton sees this CPU: what it keeps on disk, and that nobody outside notices it."""

from __future__ import annotations

import os
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
from triton import backends, knobs
from triton.runtime import cache as triton_cache
from triton.runtime.driver import DriverConfig
from triton.runtime.driver import driver as triton_drivers

from flroute.disk_cache import disk_cache
from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.triton_cpu.kept_files import KeptFiles

TRITONS_KEY = triton_cache.triton_key


@triton.jit
def double(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))


@triton.jit
def assembly(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(x + i, v)


@pytest.fixture(autouse=True)
def _active(_own_cache: None) -> None:
    """In place of the scope that tests run in elsewhere: here they open it themselves."""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path / "cache"))
    double.device_caches.clear()
    assembly.device_caches.clear()


# -- no harm to others ----------------------------------------------------------------------------------------------


def others_see() -> tuple[object, ...]:
    """What a process with vLLM-like checks, or a GPU's own kernels, ask of Triton."""
    try:
        active = triton_drivers.active
    except RuntimeError as error:  # no GPU: Triton's own answer
        active = str(error)
    files = triton_cache.get_cache_manager("00")
    active_drivers = [name for name, found in backends.backends.items() if found.driver.is_active()]
    return active, type(files), triton_cache.triton_key(), knobs.cache.manager_class, active_drivers


@pytest.fixture
def before() -> tuple[object, ...]:
    assert (type(triton_drivers), triton_cache.FileCacheManager.__name__) == (
        DriverConfig,
        "FileCacheManager",
    )
    return others_see()


def assert_as_before(before: tuple[object, ...]) -> None:
    assert others_see() == before
    assert type(triton_drivers) is DriverConfig
    assert triton_cache.FileCacheManager is before[1]
    assert triton_cache.triton_key is TRITONS_KEY
    assert "flroute_cpu" not in backends.backends


def test_inside_this_cpu_is_seen() -> None:
    with triton_cpu.active():
        assert type(triton_drivers.active).__module__ == "flroute.reference_vendor.triton_cpu.driver"
        assert type(triton_cache.get_cache_manager("00")) is KeptFiles
        assert not [
            name
            for name, found in backends.backends.items()
            if name == "flroute_cpu" and found.driver.is_active()
        ]


def test_afterwards_all_is_as_before(before: tuple[object, ...]) -> None:
    with triton_cpu.active():
        with triton_cpu.active():
            pass
        assert type(triton_drivers.active).__module__ == "flroute.reference_vendor.triton_cpu.driver"
    assert_as_before(before)
    with pytest.raises(KeyError), triton_cpu.active():
        raise KeyError
    assert_as_before(before)


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_other_threads_see_no_difference(before: tuple[object, ...]) -> None:
    with triton_cpu.active():
        assert in_thread(others_see) == (before[0], triton_cache.FileCacheManager, *before[2:])
        assert issubclass(triton_cache.FileCacheManager, before[1])
    assert_as_before(before)


def test_scopes_of_two_threads_end_in_any_order(before: tuple[object, ...]) -> None:
    opened, ended = threading.Event(), threading.Event()

    def work() -> None:
        with triton_cpu.active():
            opened.set()
            ended.wait()

    thread = threading.Thread(target=work)
    with triton_cpu.active():
        thread.start()
        opened.wait()
    assert others_see()[0] == before[0]
    ended.set()
    thread.join()
    assert_as_before(before)


def test_a_child_forked_beside_another_threads_scope(before: tuple[object, ...]) -> None:
    opened, ended = threading.Event(), threading.Event()

    def work() -> None:
        with triton_cpu.active():
            opened.set()
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    opened.wait()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            assert_as_before(before)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    ended.set()
    thread.join()
    assert_as_before(before)


@pytest.mark.parametrize("inside", [False, True])
def test_a_forked_child_is_where_its_parent_was(inside: bool, before: tuple[object, ...]) -> None:
    def child() -> int:
        ours = type(triton_drivers).__name__ == "_ScopedDrivers"
        if inside:
            with triton_cpu.active():
                x = torch.ones(8)
                double[(1,)](x, BLOCK=8)
            return 0 if ours and x.sum() == 16 else 1
        return 0 if not ours and others_see() == before else 1

    def forked() -> int:
        process = os.fork()
        if process == 0:
            code = 2
            try:
                code = child()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    if inside:
        with triton_cpu.active():
            double[(1,)](torch.ones(8), BLOCK=8)
            assert forked() == 0
    else:
        assert forked() == 0
    assert_as_before(before)


# -- what is kept ---------------------------------------------------------------------------------------------------


WARM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import test_scope
from flroute.reference_vendor import triton_cpu
x = torch.ones(8)
with triton_cpu.active():
    test_scope.double[(1,)](x, BLOCK=8)
assert x.sum() == 16
compiler = ("compiler", "lowering", "vector_math", "python_entry")
print(sum("flroute.reference_vendor.triton_cpu." + name in sys.modules for name in compiler))
"""


def test_kernels_are_kept_in_the_cache_that_flroute_shows(own_cache: None, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "tritons"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", WARM, str(Path(__file__).parent)]
    shown = [
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        for _ in range(2)
    ]
    assert shown == ["4\n", "0\n"]
    assert [entry.name for entry in disk_cache().entries()] == ["double"]
    assert not (tmp_path / "tritons").exists()
    assert not list((tmp_path / "tmp").glob("triton-cpu*"))  # where the files lay while it ran


def test_a_damaged_entry_is_compiled_again(own_cache: None) -> None:
    for _ in range(2):
        x = torch.ones(8)
        with triton_cpu.active():
            double[(1,)](x, BLOCK=8)
        assert x.sum() == 16
        (entry,) = disk_cache().entries()
        (disk_cache().folder / entry.key).write_bytes(b"damaged")
        double.device_caches.clear()


def test_a_refusal_is_kept_and_says_the_same(own_cache: None) -> None:
    said = []
    for _ in range(2):
        with (
            pytest.raises(triton_cpu.UnsupportedKernelError, match=r"tt\.elementwise_inline_asm") as caught,
            triton_cpu.active(),
        ):
            assembly[(1,)](torch.zeros(8), BLOCK=8)
        said.append(str(caught.value))
        assembly.device_caches.clear()
    assert said[0] == said[1]
    assert [entry.name for entry in disk_cache().entries()] == ["assembly"]


def test_a_cache_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path / "file"))
    double.device_caches.clear()
    x = torch.ones(8)
    with triton_cpu.active():
        double[(1,)](x, BLOCK=8)
    assert x.sum() == 16
    assert (
        len([record for record in caplog.records if "compiled kernels are not kept" in record.getMessage()])
        == 1
    )
