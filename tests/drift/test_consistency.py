"""One checkpoint as it is trained and served: the ways agree where they should, and each that cannot run says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import flroute
from flroute.cli import app

ALL = ["training", "inference", "compiled", "exported", "quantized"]


class Twice(nn.Module):
    """A module that is called twice, one inside another, and an answer in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": self.head(self.body(self.head(x)).relu()), "about": "words"}


def made() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Twice(), torch.randn(5, 6)


@pytest.mark.parametrize("device", ["reference", "opaque", "cpu"])
def test_all_ways_run_and_agree(device: str) -> None:
    found = flroute.consistency(*made(), device)
    assert {way.name: way.reason for way in found.ways} == dict.fromkeys(ALL, "")
    assert found.passed
    assert len(found.pairs) == 10
    for pair in found.pairs:
        assert pair.layers == 5, pair  # head twice, body, and both inside it
        assert pair.result.numel == 30
        if "quantized" not in (pair.a, pair.b):
            assert pair.result.max_abs < 1e-6


def test_rounded_weights_are_the_largest_difference() -> None:
    found = flroute.consistency(*made(), "reference")
    rounded = found.pair("training", "quantized")
    assert 1e-5 < rounded.result.max_abs < 0.1
    assert rounded.layer in ("head", "body.0", "body", "body.1")
    assert rounded.result.max_abs > 10 * found.pair("training", "compiled").result.max_abs


def test_the_layer_that_behaves_otherwise_when_served_is_named() -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if torch.is_grad_enabled() else x * 1.5

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Moody(), nn.Tanh())
    found = flroute.consistency(model, torch.randn(3, 4), "reference")
    assert not found.passed
    pair = found.pair("training", "inference")
    assert pair.excess > 1
    assert pair.layer == "1"
    assert "beyond what is allowed: training and inference" in str(found)


def test_what_cannot_be_compiled_or_exported_says_why() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp() if x.sum() > 0 else x.sin()

    found = flroute.consistency(Branching(), torch.ones(3), "reference")
    reasons = {way.name: way.reason for way in found.ways}
    assert list(reasons) == ALL
    assert reasons["training"] == reasons["inference"] == ""
    assert (
        "data-dependent" in reasons["exported"].lower()
        or "Unsupported" in reasons["exported"]
        or "UserError" in reasons["exported"]
    )
    assert "no linear layer and no convolution" in reasons["quantized"]
    assert found.passed  # what did run agrees
    assert "exported could not run: " in str(found)
    assert "quantized could not run: " in found._repr_html_()


def spoiled(graph: torch.fx.GraphModule, _examples: Any) -> Any:
    """A backend whose code is a little off."""
    return lambda *inputs: tuple(y * 1.01 for y in graph(*inputs))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_another_backend_of_torch_compile_is_held_against_the_others(device: str) -> None:
    found = flroute.consistency(*made(), device, backend="eager")
    compiled = found.pair("training", "compiled")
    assert found.passed
    assert (compiled.layers, compiled.result.numel) == (0, 30)
    assert "compiled: torch.compile, backend 'eager'" in str(found)
    found = flroute.consistency(*made(), device, backend=spoiled)
    assert not found.passed
    assert found.pair("training", "compiled").excess > 1
    assert "compiled: torch.compile, backend 'spoiled'" in str(found)


def test_a_backend_that_there_is_not_says_so() -> None:
    found = flroute.consistency(*made(), "reference", backend="nobodys")
    (way,) = [way for way in found.ways if way.reason]
    assert way.name == "compiled"
    assert "nobodys" in way.reason


def test_what_was_done_is_said() -> None:
    text = str(flroute.consistency(nn.Linear(4, 4), torch.ones(2, 4), "reference"))
    assert "compiled: torch.compile, AOTAutograd's graph run op by op, as by backend 'aot_eager'" in text
    assert "quantized: weights of linear layers and convolutions rounded to int8" in text
    assert "computed in the model's dtypes" in text


def test_a_model_that_cannot_run_at_all_raises_its_own_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        flroute.consistency(Broken(), torch.ones(1), "reference")


def test_dropout_is_off_and_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    weights = {name: p.clone() for name, p in model.state_dict().items()}
    found = flroute.consistency(model, torch.ones(2, 4), "reference")
    assert found.passed
    assert model.training
    assert all(torch.equal(weights[name], p) for name, p in model.state_dict().items())
    assert all(p.device.type == "cpu" for p in model.parameters())


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()), torch.randn(3, 4)\n"
    )
    command = [
        "consistency",
        f"{tmp_path}/m.py:make",
        "--device",
        "reference",
        "--html",
        str(tmp_path / "page.html"),
    ]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert "ran in 5 ways of 5" in ran.output
    assert "training" in (tmp_path / "page.html").read_text()
    told = json.loads(CliRunner().invoke(app, [*command[:4], "--json"]).stdout)
    assert told["passed"]
    assert [way["name"] for way in told["ways"]] == ALL
    assert {(pair["a"], pair["b"]) for pair in told["pairs"]} >= {
        ("training", "compiled"),
        ("exported", "quantized"),
    }
