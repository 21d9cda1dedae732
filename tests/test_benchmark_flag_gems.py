"""The judge of ``benchmarks/flag_gems.py``. FlagGems itself is not installed here: ``operators()`` and the run are not tested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from support import needs_triton

needs_triton()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "flag_gems.py"
    spec = importlib.util.spec_from_file_location("benchmark_flag_gems", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_values_are_judged_by_float64(script: ModuleType) -> None:
    exact = torch.rand(8, dtype=torch.float64) + 1
    host = exact.float()
    assert script.compare([host * (1 + 1e-7)], [host], [exact]) == ""
    assert "values, by up to" in script.compare([host * 1.01], [host], [exact])
    assert "shape" in script.compare([host[:4]], [host], [exact])
    assert "torch.float64 for" in script.compare([exact], [host], [exact])
    assert "2 results for 1" in script.compare([host, host], [host], [exact])
    assert script.compare([host * 2], [host], [exact], values=False) == ""
    nan = torch.full((8,), float("nan"))
    assert script.compare([nan], [host], [exact])
    assert script.compare([nan], [nan], [nan.double()]) == ""


def test_an_operator_is_called_and_its_arguments_compared_too(script: ModuleType) -> None:
    call = script.Call((torch.rand(4), torch.rand(4)), {})
    assert script.judge("add.Tensor", torch.add, call).kind == "elsewhere"  # right, without a kernel
    assert script.judge("add.Tensor", torch.sub, call).kind == "wrong"
    assert script.judge("add.Tensor", lambda x, y: x.add_(y), call).kind == "wrong"
    raised = script.judge("add.Tensor", lambda x, y: 1 // 0, call)
    assert (raised.kind, raised.cause.partition(":")[0]) == ("raised", "ZeroDivisionError")
    assert script.judge("add.Tensor", torch.add, script.Call((torch.rand(3), torch.rand(4)), {})) is None


def test_a_write_outside_a_tensor_is_found(script: ModuleType) -> None:
    def outside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.as_strided((5,), (1,))[4] = 7.0
        return x + y

    call = script.Call((torch.rand(4), torch.rand(4)), {})
    assert script.judge("add.Tensor", outside, call).kind == "outside"


def test_the_worst_call_decides(script: ModuleType) -> None:
    def verdict(*kinds: str) -> str:
        return script.verdict([script.Outcome(kind, "", "") for kind in kinds])

    assert verdict("right", "elsewhere") == "passed"
    assert verdict("right", "raised") == "passed in part"
    assert verdict("right", "raised", "refused") == "refused"
    assert verdict("right", "refused", "wrong") == "failed"
    assert verdict("right", "outside") == verdict("died") == "failed"
    assert verdict("elsewhere", "raised") == "not run"
    wrong = {"new": [script.Outcome("wrong", "", "")], "erf": [script.Outcome("wrong", "", "")]}
    assert script.unexplained(wrong) == ["new"]
    assert "| `new` | failed | 0 of 1 |" in script.markdown(wrong, "versions")


def test_calls_are_recorded_with_their_arguments(script: ModuleType) -> None:
    found = script.Record({"add.Tensor"})
    with found:
        torch.add(torch.ones(2), torch.ones(2))
        torch.add(torch.ones(2), torch.ones(2))
        torch.mul(torch.ones(2), 2)
    assert [str(call) for call in found.calls["add.Tensor"]] == ["float32[2], float32[2]"]
