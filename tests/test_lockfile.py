"""flroute.lock: what it holds, what counts as drift, and who refuses it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import flroute
from flroute import lockfile
from flroute.cli import app
from flroute.doctor import State, drift
from flroute.lockfile import Lock, VendorVersions, compare, here, read
from flroute.vendor import Kernel
from support import Plugin, Vendors, make_vendor_object, throw_away_vendors

runner = CliRunner()
vendors = pytest.fixture(throw_away_vendors)

ACME = VendorVersions("1.2", driver="535.1", firmware="f7")
LOCK = Lock(
    "2.13.0+cpu",
    "0.1.0",
    {"acme": "acme-torch 1.2"},
    {"acme": ACME},
    {"aten::mm": "11", "aten::add.Tensor": "22"},
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with no lock yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drifted(project: Path) -> Path:
    """A lock of another PyTorch, in which ``aten::mm`` took other arguments."""
    now = here()
    return replace(now, torch="2.0.1+cpu", ops={**now.ops, "aten::mm": "00000000"}).write(
        project / "flroute.lock"
    )


# What it holds ----------------------------------------------------------------------------------------------


def test_it_holds_versions_and_every_op(project: Path) -> None:
    done = runner.invoke(app, ["lock"])
    assert done.exit_code == 0
    assert done.output.startswith(f"flroute.lock: torch {torch.__version__}, flroute {flroute.__version__}")
    written = json.loads((project / "flroute.lock").read_text())
    assert written["plugins"]["reference"] == f"flroute {flroute.__version__}"
    assert written["vendors"]["reference"] == {
        "version": flroute.__version__,
        "driver": None,
        "firmware": None,
    }
    assert {"aten::mm", "aten::add.Tensor", "aten::add.out"} <= written["ops"].keys()
    assert read("flroute.lock") == here()
    assert [path.name for path in project.iterdir()] == ["flroute.lock"]  # nothing unfinished is left


def test_drivers_firmware_and_namespaces_with_kernels_are_in_it(vendors: Vendors) -> None:
    torch.library.define("locked_ns::twice", "(Tensor x) -> Tensor")

    def twice(x: object) -> object:
        return x

    made = make_vendor_object("drives", Kernel("locked_ns::twice", twice))
    vendors.register(Plugin(replace(made, driver_version="9.1", firmware_version="f2")))
    found = here()
    assert found.vendors["drives"] == VendorVersions("1", "9.1", "f2")
    assert found.namespaces.keys() == {"aten", "locked_ns"}
    assert list(found.ops_of("locked_ns")) == ["locked_ns::twice"]


def test_it_is_the_same_in_every_process(project: Path) -> None:
    here().write("a.lock")
    code = "import transformers, flroute; flroute.lockfile.here().write('b.lock')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert compare(read("a.lock"), read("b.lock")) == []


# What counts as drift ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "told", "remedy"),
    [
        (replace(LOCK, torch="2.15.0"), "torch: locked 2.13.0+cpu, here 2.15.0", "pip install 'torch==2.13.0'"),
        (replace(LOCK, flroute="0.2"), "flroute: locked 0.1.0, here 0.2", "pip install 'flroute==0.1.0'"),
        (replace(LOCK, plugins={"acme": "acme-torch 1.3"}), "plugin acme: locked acme-torch 1.2, here acme-torch 1.3", "pip install 'acme-torch==1.2'"),
        (replace(LOCK, plugins={}), "plugin acme: locked acme-torch 1.2, here nothing", "pip install 'acme-torch==1.2'"),
        (replace(LOCK, plugins={**LOCK.plugins, "b": "bee 1"}), "plugin b: locked nothing, here bee 1", "pip uninstall bee"),
        (replace(LOCK, vendors={}), "vendor acme: locked 1.2, here nothing", "`flroute doctor` says why it did not load"),
        (replace(LOCK, vendors={"acme": ACME, "b": ACME}), "vendor b: locked nothing, here 1.2", "remove the package that brings it"),
        (replace(LOCK, vendors={"acme": replace(ACME, version="1.3")}), "vendor acme: locked 1.2, here 1.3", "install vendor acme 1.2"),
        (replace(LOCK, vendors={"acme": replace(ACME, driver="536")}), "driver of acme: locked 535.1, here 536", "install driver of acme 535.1"),
        (replace(LOCK, vendors={"acme": replace(ACME, firmware=None)}), "firmware of acme: locked f7, here nothing", "install firmware of acme f7"),
    ],
)  # fmt: skip
def test_each_version_that_drifted_is_named(now: Lock, told: str, remedy: str) -> None:
    (found,) = compare(LOCK, now)
    assert str(found) == told
    assert found.remedy == remedy


def test_each_op_that_changed_came_or_went_is_named() -> None:
    (found,) = compare(LOCK, replace(LOCK, ops={"aten::mm": "99", "aten::mish": "33"}))
    assert (found.changed, found.new, found.gone) == (("aten::mm",), ("aten::mish",), ("aten::add.Tensor",))
    assert "(1 changed: aten::mm; 1 new: aten::mish; 1 gone: aten::add.Tensor)" in str(found)


def test_many_ops_are_counted() -> None:
    many = {f"aten::op{i}": "1" for i in range(9)}
    (found,) = compare(replace(LOCK, ops={}), replace(LOCK, ops=many))
    assert str(found).endswith("9 new: aten::op0, aten::op1, aten::op2, aten::op3, aten::op4 and 4 more)")
    assert len(found.new) == 9


def test_a_changed_schema_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = here()
    schema_of = lockfile.schema_of

    def with_another_default(op: torch._ops.OpOverload) -> str:
        schema = str(schema_of(op))
        return schema.replace("beta=1", "beta=2") if op.name() == "aten::addmm" else schema

    monkeypatch.setattr(lockfile, "schema_of", with_another_default)
    monkeypatch.setattr(lockfile, "_schemas", lockfile._schemas.__wrapped__)
    (found,) = compare(before, here())
    assert (found.what, found.changed, found.new, found.gone) == ("ops of aten", ("aten::addmm",), (), ())


# Who refuses it ---------------------------------------------------------------------------------------------


def test_a_locked_session_opens_where_nothing_drifted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here().write(project / "flroute.lock")
    (project / "src").mkdir()
    monkeypatch.chdir(project / "src")  # the file is found upward
    with flroute.enable(device="reference", locked=True):
        assert torch.ones(2).device.type == "fl"


def test_a_locked_session_names_what_drifted(drifted: Path) -> None:
    with pytest.raises(flroute.LockError) as caught:
        flroute.enable(device="reference", locked=True)
    told = str(caught.value)
    for words in (
        str(drifted),
        "torch: locked 2.0.1+cpu",
        "pip install 'torch==2.0.1'",
        "1 changed: aten::mm",
        "`flroute lock` writes the file anew",
    ):
        assert words in told
    flroute.enable(device="reference")  # not asked


def test_the_setting_reaches_calls_outside_sessions(drifted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_LOCKED", "1")
    monkeypatch.setattr("flroute.routers._default", None)
    x = torch.ones(2)
    with pytest.raises(flroute.LockError, match=r"torch: locked 2\.0\.1"):
        x.to("fl").relu()


def test_a_lock_that_was_written_anew_is_read_anew(drifted: Path) -> None:
    with pytest.raises(flroute.LockError):
        flroute.enable(device="reference", locked=True)
    here().write(drifted)
    flroute.enable(device="reference", locked=True)


def test_the_doctor_names_what_drifted_when_asked(drifted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(drift.since_lock(asked=False)) == []
    done = runner.invoke(app, ["doctor", "--quick", "--locked"])
    assert done.exit_code == 1
    assert "torch: locked 2.0.1+cpu" in done.output
    assert "to do: pip install 'torch==2.0.1'; or flroute lock" in done.output
    monkeypatch.setenv("FLROUTE_LOCKED", "1")
    assert {check.state for check in drift.since_lock(asked=False)} == {State.RED}
    here().write(drifted)
    (check,) = drift.since_lock(asked=True)
    assert check.state is State.GREEN


def test_two_locks_are_compared(project: Path) -> None:
    LOCK.write("a.lock")
    replace(LOCK, torch="2.15.0", ops={"aten::mm": "99", "aten::mish": "33"}).write("b.lock")
    done = runner.invoke(app, ["lock", "--diff", "a.lock", "b.lock"])
    assert done.exit_code == 1
    rows = [line.split() for line in done.output.splitlines()]
    assert ["torch", "2.13.0+cpu", "2.15.0"] in rows
    assert ["aten::mm", "changed"] in rows
    assert ["aten::add.Tensor", "-"] in rows
    assert ["-", "aten::mish"] in rows
    found = json.loads(runner.invoke(app, ["lock", "--diff", "a.lock", "b.lock", "--json"]).output)
    assert [(d["what"], d["changed"]) for d in found] == [("torch", []), ("ops of aten", ["aten::mm"])]
    same = runner.invoke(app, ["lock", "--diff", "a.lock", "a.lock"])
    assert (same.exit_code, same.output) == (0, "a.lock and a.lock describe the same environment\n")
    assert not (project / "flroute.lock").exists()


# Bad input --------------------------------------------------------------------------------------------------


def test_no_lock_is_an_error_that_says_how_to_write_one(project: Path) -> None:
    with pytest.raises(
        flroute.LockError, match=r"no flroute.lock in .* or above it; `flroute lock` writes one"
    ):
        flroute.enable(device="reference", locked=True)
    (check,) = drift.since_lock(asked=True)
    assert check.state is State.RED
    done = runner.invoke(app, ["lock", "--diff", "a.lock", "b.lock"])
    assert (done.exit_code, "a.lock does not exist; `flroute lock` writes it" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "flroute.lock:1: not a lock file"),
        ('{"schema_version": 1,\n "torch":', "flroute.lock:2: not a lock file"),
        ("[]", "schema version None, this flroute reads 1"),
        ('{"schema_version": 9}', "schema version 9, this flroute reads 1"),
        ('{"schema_version": 1}', "not a lock file: KeyError: 'vendors'"),
        ('{"schema_version": 1, "vendors": []}', "not a lock file: AttributeError"),
        ('{"schema_version": 1, "vendors": {"acme": {"speed": 1}}}', "not a lock file: TypeError"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_that_is_no_lock_is_an_error_in_words(text: str | bytes, told: str, project: Path) -> None:
    (project / "flroute.lock").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(flroute.LockError) as caught:
        flroute.enable(device="reference", locked=True)
    assert told in str(caught.value)


def test_a_lock_changed_by_hand_is_refused(project: Path) -> None:
    path = LOCK.write(project / "flroute.lock")
    path.write_text(path.read_text().replace('"aten::mm": "11"', '"aten::mm": "12"'))
    with pytest.raises(flroute.LockError, match="changed by hand"):
        read(path)


def test_a_full_disk_leaves_the_old_lock(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = LOCK.write(project / "flroute.lock")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = runner.invoke(app, ["lock"])
    assert done.exit_code == 2
    assert "flroute.lock cannot be written" in done.output
    monkeypatch.undo()
    assert read(path) == LOCK
    assert [entry.name for entry in project.iterdir()] == ["flroute.lock"]
