"""The command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flroute
from flroute import registry
from flroute.cli import app
from support import Plugin, Vendors, make_vendor_object, throw_away_vendors

runner = CliRunner()
vendors = pytest.fixture(throw_away_vendors)


def test_without_a_command_it_says_what_there_is() -> None:
    shown = runner.invoke(app, []).output
    for command in ("demo", "devices", "ops", "doctor"):
        assert command in shown


def test_devices() -> None:
    shown = runner.invoke(app, ["devices"])
    assert shown.exit_code == 0
    assert "reference:0" in shown.output
    listed = json.loads(runner.invoke(app, ["devices", "--json"]).output)
    assert [row["device"] for row in listed] == [device.name for device in flroute.devices()]
    assert listed[0]["version"] == flroute.__version__
    assert {"name", "total_memory", "driver", "firmware"} <= listed[0].keys()


def test_devices_show_what_their_vendor_says_of_driver_and_firmware(vendors: Vendors) -> None:
    made = make_vendor_object("with_a_driver")
    vendors.register(Plugin(replace(made, driver_version="12.4", firmware_version="fw7")))
    shown = runner.invoke(app, ["devices"])
    assert "12.4" in shown.output
    assert "fw7" in shown.output


def test_ops() -> None:
    shown = runner.invoke(app, ["ops", "--vendor", "reference"])
    assert shown.exit_code == 0
    assert "% of the" in shown.output
    assert "convolution" in shown.output
    found = json.loads(runner.invoke(app, ["ops", "--vendor", "reference", "--format", "json"]).output)
    assert sum(sum(family.values()) for family in found["families"].values()) == len(found["ops"])
    assert {row["op"]: row["state"] for row in found["ops"]}["aten::convolution"] == "native"


def test_single_ops() -> None:
    shown = runner.invoke(app, ["ops", "add", "--vendor", "reference"])
    for op in ("aten::add.Tensor", "aten::add_.Tensor", "aten::add.out"):
        assert op in shown.output
    assert "aten::addmm" not in shown.output
    found = json.loads(runner.invoke(app, ["ops", "*pool3d*", "--format", "json"]).output)
    assert all("pool3d" in row["op"] for row in found["ops"])
    unknown = runner.invoke(app, ["ops", "nope"])
    assert unknown.exit_code == 2
    assert "no op of this PyTorch is called 'nope'" in unknown.output


def test_kernels() -> None:
    asked = ["ops", "--vendor", "reference", "--kernels", "--format"]
    rows = json.loads(runner.invoke(app, [*asked, "json"]).output)
    assert {row["kernel"].split("/")[0] for row in rows} == {"reference"}
    assert {row["op"] for row in rows} == set(registry.load().kernels["reference"])
    for output in ("table", "markdown"):
        assert "reference/numpy:convolution" in runner.invoke(app, [*asked, output]).output


def test_an_unknown_vendor_is_an_error_in_words() -> None:
    for command in (["ops", "--vendor", "nope"], ["demo", "--device", "nope", "--epochs", "1"]):
        done = runner.invoke(app, command)
        assert done.exit_code == 2
        assert "no vendor named 'nope'" in done.output
        assert "reference" in done.output
        assert "Traceback" not in done.output


def test_the_demo_cannot_run_without_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    done = runner.invoke(app, ["demo"])
    assert done.exit_code == 2
    assert "pip install 'flroute[demo]'" in done.output


@pytest.mark.parametrize(("kept", "code"), [(True, 0), (False, 1)])
def test_the_demo_exits_with_what_became_of_its_promise(
    kept: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr("flroute.demo.run", lambda **arguments: asked.update(arguments) or kept)
    done = runner.invoke(
        app, ["demo", "--epochs", "2", "--seed", "5", "--decisions", str(tmp_path / "d.json")]
    )
    assert done.exit_code == code
    asked.pop("console")
    assert asked == {
        "device": "reference", "fallback": "error", "epochs": 2, "seed": 5, "decisions": tmp_path / "d.json",
    }  # fmt: skip


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("flroute")
    done = subprocess.run(
        [command, "devices", "--json"], capture_output=True, text=True, env=os.environ, check=True
    )
    assert json.loads(done.stdout)


def test_the_package_can_be_run() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "flroute", "ops", "relu"], capture_output=True, text=True, check=True
    )
    assert "aten::relu" in shown.stdout
