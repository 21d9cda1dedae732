"""The doctor: every check, with its remedy; what devices compute; and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flroute import registry
from flroute.cli import app
from flroute.device import guard
from flroute.doctor import Check, Diagnosis, State, diagnose, environment, process, trials
from flroute.doctor import vendors as vendor_checks
from flroute.errors import VendorError
from flroute.vendor import HostMemory, Kernel
from support import COPY, Plugin, Vendors, make_vendor_object, throw_away_vendors

runner = CliRunner()
vendors = pytest.fixture(throw_away_vendors)


def _told_by(part: Callable[[], Iterator[Check]]) -> dict[str, Check]:
    return {check.about: check for check in part()}


# What it is made of -----------------------------------------------------------------------------------------


def test_what_is_not_green_says_what_to_do() -> None:
    for state in (State.YELLOW, State.RED):
        with pytest.raises(ValueError, match="must say what to do"):
            Check("torch", state, "too old")


def test_healthy_means_nothing_is_red() -> None:
    yellow, red = Check("a", State.YELLOW, "", "sit down"), Check("b", State.RED, "", "run")
    assert Diagnosis((yellow,)).healthy
    assert not Diagnosis((yellow, red)).healthy


def test_the_states_are_words_and_the_remedies_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (
        Check("a", State.GREEN, "fine"),
        Check("b", State.YELLOW, "[slow]", "[hurry]"),
        Check("c", State.RED, "bad", "mend it"),
    )
    monkeypatch.setattr("flroute.doctor.diagnose", lambda **_: Diagnosis(checks))
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 1
    for words in (
        "green",
        "yellow  b  [slow]",
        "to do: [hurry]",
        "to do: mend it",
        "1 green, 1 yellow, 1 red",
    ):
        assert words in shown.output
    record = json.loads(runner.invoke(app, ["doctor", "--json"]).output)
    assert (record["schema_version"], record["healthy"]) == (2, False)
    assert record["checks"][2] == {"about": "c", "state": "red", "found": "bad", "remedy": "mend it"}


# This environment, as it is and as it could be --------------------------------------------------------------


def test_this_environment_is_healthy_and_its_devices_compute() -> None:
    shown = runner.invoke(app, ["doctor", "--json"])
    record = json.loads(shown.output)
    found = {check["about"]: check for check in record["checks"]}
    assert shown.exit_code == 0, [check for check in record["checks"] if check["state"] == "red"]
    for about in (
        "flroute",
        "python",
        "torch",
        "numpy",
        "triton",
        "C library",
        "CPU",
        "threads",
        "PrivateUse1",
    ):
        assert found[about]["found"]
    assert found["vendor reference"]["found"].count("fl:") >= 1
    assert found["autoload"]["state"] == "green"
    assert found["fl:0 matrix product"] | {"found": ""} == {
        "about": "fl:0 matrix product", "state": "green", "found": "", "remedy": "",
    }  # fmt: skip
    assert "GB/s to the device" in found["fl:0 copies"]["found"]
    assert found["fl:0 training step"]["found"] == "weights as on the host; all of it native"


def test_quick_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_run_child", lambda _: pytest.fail("computed all the same"))
    done = runner.invoke(app, ["doctor", "--quick"])
    assert done.exit_code == 0
    assert "matrix product" not in done.output


def test_a_vendor_that_failed_is_red_with_its_four_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = VendorError("acme", "flroute_vendors", "acme.py:3", "the hook raised OSError: no driver")
    monkeypatch.setattr(registry.load(), "problems", [problem])
    shown = runner.invoke(app, ["doctor", "--quick"])
    assert shown.exit_code == 1
    for part in ("vendor plugin acme", "flroute_vendors", "acme.py:3", "no driver", "to do: tell who makes"):
        assert part in shown.output


def test_driver_and_firmware_of_a_vendor_are_told(vendors: Vendors) -> None:
    vendors.register(
        Plugin(replace(make_vendor_object("drives"), driver_version="9.1", firmware_version="f2"))
    )
    assert _told_by(vendor_checks.loaded)["vendor drives"].found.startswith("1, driver 9.1, firmware f2: fl:")


def test_kernels_for_ops_of_another_pytorch_are_told_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry.load(), "unknown_ops", ["maker: aten::from_tomorrow", "maker: aten::and_after"]
    )
    check = _told_by(vendor_checks.loaded)["vendor maker"]
    assert check.state is State.GREEN
    assert check.found.endswith("aten::from_tomorrow, aten::and_after")


def test_every_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_FALBACK", "error")
    monkeypatch.setenv("FLROUTE_ZZZ", "1")
    found = _told_by(environment.settings)
    assert found["FLROUTE_FALBACK"].state is State.RED
    assert found["FLROUTE_FALBACK"].remedy == "unset FLROUTE_FALBACK, or write FLROUTE_FALLBACK"
    assert found["FLROUTE_ZZZ"].remedy == "unset FLROUTE_ZZZ"


def test_a_wrong_setting_is_red_and_the_rest_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_FALLBACK", "eror")
    monkeypatch.setattr(registry, "_registry", None)  # as in a process that has not loaded its vendors yet
    found = {check.about: check for check in diagnose(with_trials=False).checks}
    assert found["settings"].state is State.RED
    assert "Did you mean 'error'" in found["settings"].found
    assert found["PrivateUse1"].state is State.GREEN
    assert found["vendors"].state is State.RED


def test_settings_and_variables_of_others_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_FALLBACK", "error")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = _told_by(environment.settings)
    assert found["setting fallback"].found == "error (from FLROUTE_FALLBACK)"
    assert found["OMP_NUM_THREADS"].found == "1"


def test_another_owner_of_the_slot_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flroute.torch_compat.device_owner", lambda: "npu")
    slot = _told_by(process.device_slot)["PrivateUse1"]
    assert slot.state is State.RED
    assert "held by 'npu'" in slot.found


def test_the_autoload_that_failed_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flroute_autoload.py").write_text(
        "failure = RuntimeError('broken on purpose')\ndef autoload():\n    pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    autoload = _told_by(process.autoload)["autoload"]
    assert autoload.state is State.RED
    assert "RuntimeError: broken on purpose" in autoload.found


def test_a_guard_that_could_not_be_patched_is_yellow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed", lambda: False)
    yellow = [check for check in process.cures() if check.state is State.YELLOW]
    assert [(check.about, check.remedy) for check in yellow] == [
        ("cure", "name the device's number: .to('fl:1')")
    ]


def test_a_pytorch_that_is_not_tested_is_yellow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flroute.torch_compat.SUPPORTED", ("1.0",))
    check = _told_by(environment.versions)["torch"]
    assert check.state is State.YELLOW
    assert check.remedy.endswith("pip install 'torch==1.0.*'")


@pytest.mark.parametrize(
    ("requirement", "found"), [("numpy>=99", "flroute needs >=99"), ("no-such-package", "not installed")]
)
def test_a_requirement_that_is_not_met_is_red(
    requirement: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "requires", lambda _: [requirement, "absent; extra == 'demo'"])
    (check,) = environment.requirements()
    assert check.state is State.RED
    assert found in check.found
    assert check.remedy == f"pip install '{requirement}'"


def test_a_processor_held_back_and_too_many_threads_are_yellow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = {check.about: check for check in environment.host()}
    assert found["CPU"].remedy.startswith("unset ATEN_CPU_CAPABILITY")
    assert found["threads"].remedy == "set OMP_NUM_THREADS=1"


# What devices compute ---------------------------------------------------------------------------------------


def _mm_times(factor: float) -> Kernel:
    def mm(x: Any, y: Any) -> Any:
        return np.matmul(x, y) * np.float32(factor)

    return Kernel("aten::mm", mm, dtypes=(torch.float32,))


def test_a_product_that_the_host_computed_is_yellow(vendors: Vendors) -> None:
    check = trials.matrix_product(vendors(COPY).devices[0])
    assert check.state is State.YELLOW
    assert "the host computed aten::mm" in check.found


def test_a_right_product_is_green(vendors: Vendors) -> None:
    assert trials.matrix_product(vendors(COPY, _mm_times(1.0)).devices[0]).state is State.GREEN


@pytest.mark.parametrize("factor", [1.0001, float("nan")])
def test_a_wrong_product_is_red_and_names_the_first_wrong_element(factor: float, vendors: Vendors) -> None:
    device = vendors(COPY, _mm_times(factor)).devices[0]
    check = trials.matrix_product(device)
    assert check.about == f"{device.name} matrix product"
    assert check.state is State.RED
    assert "the first at [0, 0]: " in check.found
    assert 'order={"aten::mm": ["host"]}' in check.remedy


def test_a_kernel_that_raises_is_red_with_its_error(vendors: Vendors) -> None:
    def mm(x: Any, y: Any) -> Any:
        raise OSError("the cable is loose")

    device = vendors(COPY, Kernel("aten::mm", mm)).devices[0]
    check = trials.tried("product", trials.matrix_product, device)
    assert (check.state, check.found.splitlines()[0]) == (State.RED, "OSError: the cable is loose")
    assert device.vendor in check.remedy


class _Forgetful(HostMemory):
    def copy_to_host(self, device: int, source: int, host_target: int, nbytes: int) -> None:
        """Bring nothing back."""


def test_bytes_that_come_back_changed_are_red(vendors: Vendors) -> None:
    class Opaque(_Forgetful):
        host_visible = False

    assert trials.copies(vendors().devices[0]).state is State.GREEN
    check = trials.copies(vendors(memory=Opaque()).devices[0])
    assert check.state is State.RED
    assert "bytes came back changed" in check.found


def test_a_training_step_with_a_wrong_gradient_is_red(vendors: Vendors) -> None:
    check = trials.training_step(vendors(COPY).devices[0])
    assert check.state is State.YELLOW
    assert check.found.startswith("weights as on the host; the host computed")
    check = trials.training_step(vendors(COPY, _mm_times(1.01)).devices[0])
    assert check.state is State.RED
    assert "after one step" in check.found


_VENDOR_THAT = """
import os, time
from flroute.vendor import DeviceFacts, HostMemory, Kernel, Vendor, hookimpl

def mm(x, y):
    {act}

@hookimpl
def flroute_vendors():
    yield Vendor("abrupt", "1", (DeviceFacts("Abrupt", 2**20),), HostMemory(), (Kernel("aten::mm", mm),))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a vendor for processes that are started from here."""

    def install(act: str) -> None:
        (tmp_path / "abrupt.py").write_text(_VENDOR_THAT.format(act=act))
        info = tmp_path / "abrupt-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: abrupt\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[flroute]\nabrupt = abrupt\n")
        monkeypatch.setenv(
            "PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        )
        monkeypatch.setenv("FLROUTE_DEFAULT_VENDOR", "abrupt")

    return install


def test_a_driver_that_ends_the_process_is_red_and_named(installed: Callable[[str], None]) -> None:
    installed("os._exit(7)")
    (check,) = [check for check in trials.in_another_process() if check.state is State.RED]
    assert check.about == "fl:0 matrix product"
    assert check.found == "the process that tried it ended with code 7: it said nothing"


def test_a_driver_that_hangs_is_red_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: Any) -> None:
        Path(command[-1]).write_text('{"about": "fl:0 copies"}\n')
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    (check,) = trials.in_another_process()
    assert (check.about, check.state, check.found) == ("fl:0 copies", State.RED, "no answer within 300 s")


def test_what_the_process_says_before_it_dies_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flroute").mkdir()
    (tmp_path / "flroute" / "__init__.py").write_text("raise ImportError('half an installation')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    (check,) = trials.in_another_process()
    assert (check.about, check.state) == ("trials", State.RED)
    assert check.found.endswith("ImportError: half an installation")
    assert sys.executable not in check.found
