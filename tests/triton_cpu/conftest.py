"""Kernels are compiled inside the scope in which Triton sees this CPU, into a cache of the test session's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("llvmlite")

from flroute.reference_vendor import triton_cpu


@pytest.fixture(scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(autouse=True)
def _active(_own_cache: None) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with triton_cpu.active():
        yield
    torch.set_num_threads(threads)
