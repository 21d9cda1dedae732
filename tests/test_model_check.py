"""What ``flroute.check`` forecasts is what a session does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import flroute
from flroute import Route
from flroute.cli import app

runner = CliRunner()


class Branching(nn.Module):
    """Its path depends on its data."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y.exp() if y.sum() > 0 else y.erfinv()


class Erfinv(nn.Module):
    """Falls back: the fixtures of this folder take its kernel away."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erfinv(x)


MODELS: dict[str, tuple[Any, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LogSoftmax(-1)), (3, 8)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten()
        ),
        (2, 2, 8, 8),
    ),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "recurrent": (lambda: nn.LSTM(4, 8, batch_first=True), (2, 3, 4)),
    "fallback": (lambda: nn.Sequential(nn.Linear(8, 8), Erfinv()), (3, 8)),
}


@pytest.mark.parametrize("vendor", ["reference", "opaque"])
@pytest.mark.parametrize("name", MODELS)
def test_the_forecast_is_what_happens(name: str, vendor: str) -> None:
    make, shape = MODELS[name]
    model = make()
    found = flroute.check(model, torch.zeros(shape), vendor)
    device = flroute.device(vendor)
    there, x = make().to(device), torch.rand(shape).to(device)
    gradients = [torch.ones_like(t).to(device) for t in _tensors(model(torch.rand(shape)))]
    with flroute.enable(device=vendor, fallback="allow") as session:
        torch.autograd.backward(_tensors(there(x)), gradients)
    assert found.remarks == ()
    assert _computing(found.ops) == _computing(session.decisions)


def _tensors(output: Any) -> list[torch.Tensor]:
    return [output] if isinstance(output, torch.Tensor) else [t for part in output for t in _tensors(part)]


def _computing(rows: Any) -> set[tuple[str, str]]:
    """Ops with their routes, but for room that is made and results that are put into another layout.

    Inside the parts of an op that flroute splits, PyTorch splits ``rsub`` before a session sees it; the forecast sees it whole.
    """
    kept = [row for row in rows if row.route in (Route.NATIVE, Route.FALLBACK)]
    ops = [(row.op.replace("aten::rsub.Scalar", "aten::sub.Tensor"), str(row.route)) for row in kept]
    return {(op, route) for op, route in ops if not op.startswith(("aten::empty", "aten::copy_"))}


def test_says_what_to_implement_next_most_work_first() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Erfinv())
    found = flroute.check(model, torch.zeros(3, 8), "reference", backward=False)
    (missing,) = found.missing
    assert (missing.op, missing.calls, missing.flops, missing.module, missing.phase) == (
        "aten::erfinv",
        1,
        24,
        "1",
        "forward",
    )
    assert missing.advice == 'write a kernel: @flroute.vendor.kernel("aten::erfinv", dtypes=("float32",))'
    assert found.by_op == 0.5
    assert found.by_flops == pytest.approx(1 - 24 / (2 * 3 * 8 * 8 + 24))
    opaque = flroute.check(nn.Sequential(nn.Linear(64, 64), nn.GELU()), torch.zeros(3, 64), "opaque").missing
    assert [op.flops for op in opaque] == sorted((op.flops for op in opaque), reverse=True)


def test_a_dtype_that_no_kernel_takes_is_the_reason() -> None:
    found = flroute.check(nn.ReLU(), torch.zeros(3, dtype=torch.float64), "opaque", backward=False)
    (missing,) = found.missing
    assert missing.reason == "dtype"
    assert "float64" in missing.advice


def test_data_dependent_control_flow_is_reported() -> None:
    found = flroute.check(Branching(), torch.zeros(2, 4), "reference")
    (remark,) = found.remarks
    assert "the forward pass was followed up to the model at" in remark
    assert "test_model_check.py:" in remark
    assert {"aten::addmm", "aten::sum"} <= {op.op for op in found.ops}


def test_a_model_without_gradients_is_told() -> None:
    found = flroute.check(nn.ReLU(), torch.zeros(2, 4), "reference")
    assert found.remarks == ("no output has a gradient: the backward pass was not checked",)


def test_neither_model_nor_inputs_are_touched() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.ones(2, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    used = torch.fl.memory_allocated()  # type: ignore[attr-defined]
    flroute.check(model, x, "reference")
    assert torch.fl.memory_allocated() == used  # type: ignore[attr-defined]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_larger_than_memory_on_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(2**16, 2**16) for _ in range(8)])  # 137 GB
        x = torch.zeros(4, 2**16)
    found = flroute.check(model, x, "reference")
    assert found.by_flops == 1.0
    assert sum(op.flops for op in found.ops if op.op == "aten::addmm") == 8 * 2 * 4 * 2**32


def test_as_table_and_dict() -> None:
    found = flroute.check(nn.Sequential(nn.Linear(8, 8), Erfinv()), torch.zeros(3, 8), "reference")
    record = json.loads(json.dumps(found.to_dict()))
    assert record["coverage_by_op"] == found.by_op
    assert {op["op"]: op["route"] for op in record["ops"]}["aten::erfinv"] == "fallback"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(flroute.UnknownVendorError, match="acme"):
        flroute.check(nn.ReLU(), torch.zeros(2), "acme")


class TestCommand:
    @pytest.fixture
    def models(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "my_models.py"
        path.write_text(
            "import torch\n"
            "def good(): return torch.nn.Linear(4, 4), torch.zeros(2, 4)\n"
            "def bad(): return torch.nn.Softshrink(), torch.zeros(2, 4)\n"
            "number = 3\n"
        )
        monkeypatch.chdir(tmp_path)
        return path

    def test_passes_and_fails(self, models: Path) -> None:
        good = runner.invoke(app, ["check", f"{models}:good"])
        assert good.exit_code == 0, good.output
        assert "nothing would fall back" in good.output
        bad = runner.invoke(app, ["check", "my_models:bad", "--device", "opaque", "--no-backward"])
        assert bad.exit_code == 1, bad.output
        assert "implement these next" in bad.output
        assert "aten::softshrink" in bad.output

    def test_in_json(self, models: Path) -> None:
        record = json.loads(runner.invoke(app, ["check", f"{models}:good", "--json"]).output)
        assert record["coverage_by_flops"] == 1.0

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("my_models", "names no function"),
            ("my_models:none", "no function 'none'"),
            ("my_models:number", "is not a function"),
            ("no_such_module:f", "cannot be loaded"),
            ("no_such_file.py:f", "cannot be loaded"),
        ],
    )
    @pytest.mark.usefixtures("models")
    def test_says_what_is_wrong_with_its_argument(self, target: str, message: str) -> None:
        shown = runner.invoke(app, ["check", target])
        assert shown.exit_code == 2
        assert message in shown.output
