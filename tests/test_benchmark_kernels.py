"""What ``benchmarks/kernels.py`` makes of its measurements, on planted ones."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console

from support import needs_triton

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("benchmark_kernels", FOLDER / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))  # where the models are
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_a_ratio_counts_for_no_more_than_the_cap(script: ModuleType) -> None:
    assert script.capped_mean([6.0, 1.5]) == pytest.approx(1.5)
    assert script.capped_mean([6.0, 0.5]) == pytest.approx(math.sqrt(1.5 * 0.5))


def test_how_high_the_mean_could_be(script: ModuleType) -> None:
    """With 4 us a call: 2 us of torch's could be halved at best, 12 us and whatever is longer reach the cap."""
    rows = [
        script.Row(name, 9.0, time, 0.3)
        for name, time in (("a", 2.0), ("b", 12.0), ("c", 15.0), ("d", 900.0))
    ]
    assert script.highest_mean(rows, 4.0) == (2, pytest.approx((0.5 * 1.5**3) ** (1 / 4)))
    assert script.highest_mean(rows, 16.0) == (
        2,
        pytest.approx((0.3 * 0.75 * 1.5**2) ** (1 / 4)),
    )  # 0.3 > 2 / 16
    assert script.highest_mean(rows[2:], 4.0) == (0, pytest.approx(1.5))


def test_the_bound_is_printed(script: ModuleType) -> None:
    console = Console(record=True, width=200)
    script._say(console, [script.Row("a", 9.0, 2.0, 0.3), script.Row("b", 9.0, 100.0, 1.2)], [], 4.0)
    expected = "1 cases take torch under 15 us; a routed call costs 4.0 us before it computes: with all others at 1.5 the mean could be at most 0.866"
    assert expected in console.export_text()


def test_a_call_costs_something_and_less_than_one_that_computes(script: ModuleType) -> None:
    x = torch.ones(10**6).to("fl")
    with script.SESSION():
        assert 0 < script.routing_cost() < script.seconds_per_call(x.exp, 20) * 1e6


def test_kernels_are_compiled_anew_and_timed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_triton()
    from flroute.reference_vendor.triton_cpu import direct

    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path))

    def load() -> direct.Kernel:
        signature, sample = {"x": "*fp32", "n": "i32"}, "flroute.reference_vendor.triton_cpu.samples:negate"
        return direct.load(sample, signature, {"BLOCK": 16})

    load()
    kept = sorted(tmp_path.rglob("*"))
    with script.compiling_anew() as seconds:
        x = np.ones(3, np.float32)
        load()(1, x, 3)
        load()
        assert x.tolist() == [-1, -1, -1]
        assert list(seconds) == ["negate(*fp32, BLOCK=16)"]
        assert seconds["negate(*fp32, BLOCK=16)"] > 0
    assert sorted(tmp_path.rglob("*")) == kept
    load()
    assert len(seconds) == 1
