"""Kernels are compiled inside the scope in which Triton sees this CPU, into a cache of the test session's own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from support import needs_triton

pytest.importorskip("triton")
pytest.importorskip("llvmlite")

from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.triton_cpu import launcher

GUARD = b"guard" * 100


@pytest.fixture(scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    needs_triton()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("FLROUTE_CACHE_DIR", str(tmp_path_factory.mktemp("flroute")))
        yield


@pytest.fixture(autouse=True)
def _active(_own_cache: None) -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with triton_cpu.active():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _scratch_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every launch has scratch memory of its own, of the exact size, with a guard behind it."""
    given: list[tuple[int, object, int]] = []

    def scratch(size: int) -> int:
        memory = ctypes.create_string_buffer(size + 64 + len(GUARD))
        address = -(-ctypes.addressof(memory) // 64) * 64
        ctypes.memmove(address + size, GUARD, len(GUARD))
        given.append((size, memory, address))
        return address

    monkeypatch.setattr(launcher, "_scratch", scratch)
    yield
    for size, _, address in given:
        assert ctypes.string_at(address + size, len(GUARD)) == GUARD
