"""``flroute bisect``: commands in processes of their own, functions in files, and what is said when a search cannot go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flroute
from flroute.cli import app
from flroute.drift.bisect.trials import CommandTrial
from flroute.errors import BisectError, SettingsError

PROGRAM = str(Path(__file__).parent / "bisected_program.py")
runner = CliRunner()


def command(*how: str) -> list[str]:
    return [sys.executable, PROGRAM, *how]


def printing(text: str) -> CommandTrial:
    return CommandTrial(["echo", text])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


# -- the number in what is printed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("loss 0.5", 0.5),
        ("epoch 1: 0.25\nepoch 2: 0.125\n", 0.125),
        ("accuracy=97.5%", 97.5),
        ("-1.5e-3", -1.5e-3),
        (".5", 0.5),
        ("1_000.25 items", 1000.25),
        ("metric: 0.75\nfinished in 12 seconds", 0.75),
        ("Metric = 3\nmetric: 4\n7", 4.0),
        ("resnet50 on fl:0 gives 2.", 2.0),
        ("loss is inf", float("inf")),
        ("model_v2 finished at 0.5 with bert4rec", 0.5),
    ],
)
def test_the_number_is_found_in_what_is_printed(printed: str, number: float) -> None:
    trial = printing(printed)
    assert trial._metric(_done(printed)) == number


def _done(stdout: str, stderr: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, stdout, stderr)


def test_a_number_may_be_found_by_a_pattern() -> None:
    trial = CommandTrial(["x"], pattern=r"^loss=(\S+)")
    assert trial._metric(_done("loss=0.5 at 1\nloss=0.25 at 2\nother=9")) == 0.25
    with pytest.raises(
        BisectError, match=r"nothing that the command 'x' prints matches \^loss=.*\n  stdout:\n  other=9"
    ):
        trial._metric(_done("other=9"))
    with pytest.raises(BisectError, match="prints 'high' where its metric is expected, which is no number"):
        trial._metric(_done("loss=high"))
    with pytest.raises(BisectError, match="is no regular expression"):
        CommandTrial(["x"], pattern="(")


def test_where_no_number_is_printed_what_was_is_shown() -> None:
    with pytest.raises(BisectError, match=r"prints is a number\.\n  stderr:\n  so it goes"):
        printing("")._metric(_done("none", "so it goes"))
    with pytest.raises(BisectError, match=r"It printed nothing\."):
        printing("")._metric(_done(""))


# -- one run ------------------------------------------------------------------------------------------------------


def test_a_command_is_run_with_ops_on_the_host() -> None:
    trial = CommandTrial(command("metric"))
    run = trial.run([])
    assert run.native == {"aten::exp": ("bisected/python:exp",), "aten::tanh": ("bisected/python:tanh",)}
    assert run.sent == ()
    other = trial.run(["aten::exp"])
    assert other.native == {"aten::tanh": ("bisected/python:tanh",)}
    assert other.sent == ("aten::exp",)
    assert abs(other.metric - run.metric) > 1e-3


def test_variables_of_the_users_own_stay_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_RULES", json.dumps([{"op": "aten::tanh", "order": "host"}]))
    run = CommandTrial(command("device from outside"), device="bisected").run(["aten::exp"])
    assert run.native == {}
    assert set(run.sent) == {"aten::exp", "aten::tanh"}
    monkeypatch.setenv("FLROUTE_RULES", "[")
    with pytest.raises(SettingsError, match="FLROUTE_RULES"):
        CommandTrial(command("metric"))


# -- what goes wrong ----------------------------------------------------------------------------------------------


def failure(*arguments: str) -> str:
    shown = runner.invoke(app, ["bisect", "--tolerance", "1e-3", *arguments])
    assert shown.exit_code == 2, shown.output
    return shown.output


def test_a_command_that_fails_is_shown_with_its_stderr() -> None:
    shown = failure("--", "sh", "-c", "echo what a pity >&2; exit 3")
    assert "ended with exit code 3, with everything on the device" in shown
    assert "stderr:\n  what a pity" in shown


def test_a_command_that_cannot_be_started_is_named() -> None:
    assert "the command 'no-such-program' cannot be started" in failure("--", "no-such-program")


def test_a_command_that_does_not_use_a_device_is_told_so() -> None:
    assert "made no decisions: it must compute on a device of flroute" in failure("--", "echo", "1.5")


def test_a_session_that_forbids_the_host_is_named_as_the_cause() -> None:
    with pytest.raises(BisectError, match="fallback='error', which bisect cannot change"):
        flroute.bisect(command("error"), 1e-3, progress=False)


def test_a_command_whose_number_is_another_each_time_is_noticed_before_the_search() -> None:
    with pytest.raises(BisectError, match="is not deterministic: two runs on the device gave"):
        flroute.bisect(command("random"), 1e-6, progress=False)


def test_a_function_that_is_not_there_is_named() -> None:
    assert "has no function 'nothing'" in failure(f"{PROGRAM}:nothing")


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(BisectError, match="a pattern finds the metric in what a command prints"):
        flroute.bisect(lambda: 1, 1e-3, pattern="x")
    with pytest.raises(BisectError, match="a command opens its own sessions: precision cannot be given"):
        flroute.bisect(["x"], 1e-3, precision="high")
    with pytest.raises(
        BisectError, match=r"a function or a command as a list of words, not 'python eval\.py'"
    ):
        flroute.bisect("python eval.py", 1e-3)
    with pytest.raises(BisectError, match="a tolerance is a finite number, 0 or more, not nan"):
        flroute.bisect(["x"], float("nan"))


# -- searches -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupted_search_of_a_command_goes_on_from_its_file(tmp_path: Path) -> None:
    log, state = tmp_path / "log", tmp_path / "state.json"
    what = [
        "bisect",
        "--tolerance",
        "1e-3",
        "--state",
        str(state),
        "--json",
        "--",
        *command("log", str(log), "4"),
    ]
    shown = runner.invoke(app, what)
    assert shown.exit_code == 2
    assert "out of memory, say" in shown.output
    assert len(json.loads(state.read_text())["runs"]) == 3
    log.write_text("." * 9)
    shown = runner.invoke(app, what)
    assert shown.exit_code == 1, shown.output
    assert "3 runs of an interrupted search are at hand" in shown.stderr
    found = json.loads(shown.stdout)
    assert found["ops"] == ["aten::exp"]
    assert found["kept"] == 3
    assert len(log.read_text()) == 9 + found["runs"] - 3
    assert not state.exists()


def test_a_function_of_a_file_is_bisected() -> None:
    sys.modules.pop("bisected_program", None)
    shown = runner.invoke(app, ["bisect", "--tolerance", "1e-3", "--device", "bisected", f"{PROGRAM}:metric"])
    try:
        assert shown.exit_code == 1, shown.output
        assert shown.stdout.startswith("aten::exp: with its kernels the metric is")
        assert "kernels: bisected/python:exp" in shown.stdout
        assert '"aten::exp.default" = ["host"]' in shown.stdout
    finally:
        _forget("bisected")


def _forget(name: str) -> None:
    from flroute import registry
    from flroute.device import table
    from flroute.routers import process_router

    found = registry.load()
    found.manager.unregister(name=name)
    found.vendors.pop(name)
    table._devices = table._devices[:-1]
    process_router().invalidate()
