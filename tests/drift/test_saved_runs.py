"""Runs recorded on two machines are compared as if both were here; those of different models are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import flroute
from flroute.cli import app
from flroute.drift.compare import kept, saved_runs
from planted import Plant, models, planting

plant = pytest.fixture(planting)
runner = CliRunner()

MODELS = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Linear(6, 4), nn.GELU()), torch.randn(3, 6)

def wide():
    return nn.Sequential(nn.Linear(6, 5), nn.GELU()), torch.randn(3, 6)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


def recorded(here: Path, name: str, function: str, device: str, *options: str) -> str:
    path = str(here / name)
    ran = runner.invoke(
        app, ["record", f"{here}/models.py:{function}", "--device", device, "-o", path, *options]
    )
    assert ran.exit_code == 0, ran.output
    return path


def test_the_commands_record_and_compare(here: Path) -> None:
    runs = [recorded(here, f"{device}.flrun", "small", device) for device in ("reference", "cpu")]
    ran = runner.invoke(app, ["compare", *runs, "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["passed"]
    assert told["a"]["device"].startswith("reference:0 (reference ")
    assert told["a"]["torch"] == torch.__version__
    assert {t["what"] for t in told["tensors"]} >= {"output", "gradient", "gradient of parameter", "result"}


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (("wide", "cpu"), "parameters: 0.weight is float32[4, 6] in one and float32[5, 6] in the other"),
        (("small", "cpu", "--seed", "1"), "checkpoint"),
        (("small", "cpu", "--no-backward"), "backward: True and False"),
    ],
)
def test_runs_of_different_models_are_refused(here: Path, second: tuple[str, ...], what: str) -> None:
    runs = recorded(here, "a.flrun", "small", "reference"), recorded(here, "b.flrun", *second)
    ran = runner.invoke(app, ["compare", *runs])
    assert ran.exit_code == 2
    assert f"differ in {what}" in ran.stderr


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    for name, x in (("a", torch.ones(2, 3)), ("b", torch.zeros(2, 3))):
        flroute.record(model, x, tmp_path / name, "cpu")
    with pytest.raises(flroute.ComparisonError, match=r"differ in inputs: 0\.0 is float32\[2, 3\]"):
        flroute.compare_saved(tmp_path / "a", tmp_path / "b")


def test_a_fault_is_named_from_its_record(plant: Plant, tmp_path: Path) -> None:
    plant("tanh_gelu_gradient")
    model, inputs = models.made("MLP")
    flroute.record(model, inputs, tmp_path / "a.flrun", "faulty")
    flroute.record(model, inputs, tmp_path / "b.flrun", "cpu")
    found = flroute.compare_saved(tmp_path / "a.flrun", tmp_path / "b.flrun")
    assert found.first_divergence is not None
    assert found.first_divergence.op == "aten::gelu_backward"


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    run = flroute.record(
        nn.Sequential(nn.Linear(3, 2), nn.Tanh()).bfloat16(),
        torch.ones(1, 3).bfloat16(),
        tmp_path / "r",
        "fl",
    )
    again = saved_runs.load(tmp_path / "r")
    assert again.origin == run.origin
    assert again.noise == run.noise
    assert [replace(op, results=()) for op in again.ops] == [replace(op, results=()) for op in run.ops]
    before, after = dict(run.tensors()), dict(again.tensors())
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype == "bfloat16"
        assert torch.equal(value.values, after[name].values)


def test_large_tensors_are_sampled_with_their_ends(tmp_path: Path) -> None:
    size = kept.KEPT_WHOLE + 1
    found = kept.keep(torch.arange(size, dtype=torch.float64))
    assert found is not None
    assert not found.is_whole
    assert len(found.values) == kept.SAMPLED
    assert {0.0, size - 1.0} <= set(found.values.tolist())
    assert found.statistics is not None
    assert (found.statistics.smallest, found.statistics.largest, found.statistics.nonfinite) == (
        0,
        size - 1,
        0,
    )
    gaps = found.values.sort().values.diff()
    assert float(gaps.max()) < 3 * size / kept.SAMPLED  # spread over all of it

    model, x = nn.Linear(2, 2**17), torch.ones(1, 2)
    for device in ("reference", "cpu"):
        flroute.record(model, x, tmp_path / device, device)
    assert (tmp_path / "reference").stat().st_size < 2**20
    report = flroute.compare_saved(tmp_path / "reference", tmp_path / "cpu")
    assert report.passed
    assert any("large tensors only some elements are compared" in remark for remark in report.remarks)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:1000], lambda b: b"", lambda b: b[:40] + bytes(200) + b[240:], lambda b: b"no run at all"],
    ids=["cut off", "empty", "overwritten", "text"],
)
def test_a_damaged_file_is_said_to_be(here: Path, damage: object) -> None:
    good = recorded(here, "a.flrun", "small", "cpu")
    bad = here / "b.flrun"
    bad.write_bytes(damage(Path(good).read_bytes()))  # type: ignore[operator]
    ran = runner.invoke(app, ["compare", good, str(bad)])
    assert ran.exit_code == 2
    assert "b.flrun" in ran.stderr
    assert "record or fetch it again" in ran.stderr


@pytest.mark.parametrize(
    "content",
    [{"w": torch.ones(2)}, {"index": "{}", "tensors": []}, [1, 2]],
    ids=["checkpoint", "no kind", "list"],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(flroute.CheckpointError, match=r"other\.pt"):
        flroute.compare_saved(tmp_path / "other.pt", tmp_path / "other.pt")


def test_a_file_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    torch.save({"index": Evil(), "tensors": []}, tmp_path / "evil")
    with pytest.raises(flroute.CheckpointError, match="evil"):
        saved_runs.load(tmp_path / "evil")
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(flroute.CheckpointError, match="there is no file"):
        saved_runs.load(tmp_path / "nowhere.flrun")


def test_a_model_that_raises_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today") if (x.exp() > 1).any() else x

    run = flroute.record(Broken(), torch.ones(2), tmp_path / "r", "reference")
    assert run.error == "ValueError: not today"
    assert any(op.op == "aten::exp" for op in saved_runs.load(tmp_path / "r").ops)
    with pytest.raises(flroute.ComparisonError, match="both runs ended early"):
        flroute.compare_saved(tmp_path / "r", tmp_path / "r")
