"""Comparing a model on two devices: the op that errs is named, and one that does not is not."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from typer.testing import CliRunner

import flroute
from flroute.cli import app

runner = CliRunner()

PERCEPTRON = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5)), torch.randn(8, 16)
"""


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))


def test_the_reference_vendor_agrees_with_the_host() -> None:
    found = flroute.compare(perceptron(), torch.randn(8, 16), a="reference")
    assert found.passed
    assert found.first_divergence is None
    assert [t.name for t in found.tensors if t.what == "output" and t.kind] == ["0", "1", "2", "3", "4", ""]
    assert {t.name for t in found.tensors if t.what == "gradient of parameter"} == set(
        dict(perceptron().named_parameters())
    )
    assert all(op.local is not None for op in found.ops)


def test_a_nan_on_one_side_is_no_difference_of_zero() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (float("nan") if x.device.type == "fl" else 1.0)

    found = flroute.compare(Scaled(), torch.ones(3), a="reference")
    assert found.first_divergence is not None
    assert found.first_divergence.why == "infinities and NaNs stand elsewhere, and no op errs by itself"


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PERCEPTRON)
    page = tmp_path / "made" / "page.html"
    ran = runner.invoke(
        app, ["compare", f"{tmp_path}/model.py:make", "--a", "reference", "--json", "--html", str(page)]
    )
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["passed"]
    assert told["a"]["device"].startswith("reference:0")
    assert "<svg" in page.read_text()


def test_the_backward_pass_starts_where_a_softmax_does_not_cancel_it() -> None:
    found = flroute.compare(
        nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), torch.randn(2, 4), a="cpu", b="host-float64"
    )
    gradient = next(t for t in found.tensors if t.what == "gradient of parameter" and t.name == "0.weight")
    assert gradient.difference.scale > 0.01
