"""Processes that a script under ``flroute run`` starts: what they did is in its report, however they came to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flroute import Decision, Reason, Redirected, Route
from flroute.child_reports import with_children
from flroute.report import Report

HYPOT = Decision("aten::hypot", Route.FALLBACK, None, "fl:0", Reason.NO_KERNEL, calls=1)
CUDA = Redirected("Tensor.cuda", "train.py:1", 1)


def report_of(*decisions: Decision, redirected: tuple[Redirected, ...] = ()) -> Report:
    return Report(decisions, device="fl:0", redirected=redirected)


def test_reports_are_added_up(tmp_path: Path) -> None:
    own = report_of(HYPOT, redirected=(CUDA,))
    own.to_json(tmp_path / "1.json")
    report_of(Decision("aten::mm", Route.NATIVE, "acme:mm", "fl:1", Reason.MATCHED, calls=3)).to_json(
        tmp_path / "2.json"
    )
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f"{gone.pid}-3.json").touch()
    found = with_children(own, tmp_path)
    assert [(d.op, d.device, d.calls) for d in found.decisions] == [
        ("aten::hypot", "fl:0", 2),
        ("aten::mm", "fl:1", 3),
    ]
    assert found.redirected == (Redirected("Tensor.cuda", "train.py:1", 2),)
    assert found.to_dict()["processes"] == {"reported": 2, "silent": 1}
    assert "of this process and 2 others that it started" in found.summary()
    assert any(
        line.startswith("without 1 process that it started, which left no report") for line in found.summary()
    )
    assert own.to_dict()["processes"] == {"reported": 0, "silent": 0}
    assert not [line for line in own.summary() if "process" in line]


def run(*arguments: str, **environment: str) -> Any:
    command = [sys.executable, *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=env)


@pytest.mark.slow
def test_a_script_reports_what_the_processes_did_that_it_started(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import multiprocessing, os, subprocess, sys
        import torch
        from torch.utils.data import DataLoader
        def fall_back(kill=False):
            torch.hypot(torch.ones(2).cuda(), torch.ones(2, device="cuda"))
            if kill:
                os.kill(os.getpid(), 9)
        if __name__ == "__main__":
            torch.relu(torch.ones(2).cuda())
            assert len(list(DataLoader(range(4), num_workers=1, multiprocessing_context="fork"))) == 4
            subprocess.run([sys.executable, "-c", "import torch; torch.ones(2).cuda().exp()"])
            forked = multiprocessing.get_context("fork").Process(target=fall_back)
            forked.start()
            forked.join()
            late = "import atexit, time, torch; torch.ones(2).cuda().exp(); atexit.register(time.sleep, 1.5)"
            subprocess.Popen([sys.executable, "-c", late])  # nobody waits for it, either
            start = multiprocessing.get_context("spawn").Process
            start(target=fall_back, args=(True,)).start()
            start(target=fall_back).start()  # nobody joins it
        """))  # fmt: skip
    report = tmp_path / "run.json"
    done = run("-m", "flroute", "run", "--device", "opaque", "--report", str(report), str(script))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert found["processes"] == {"reported": 5, "silent": 1}
    calls = {d["op"]: d["calls"] for d in found["decisions"] if d["route"] == "fallback"}
    assert calls == {"aten::hypot": 2, "aten::exp": 2}
    relus = [d["calls"] for d in found["decisions"] if d["op"] == "aten::relu"]
    assert relus == [1], "forked processes count from zero"
    assert {"name": "Tensor.cuda", "site": f"{script}:6", "calls": 2} in found["redirected"]


@pytest.mark.slow
def test_a_session_of_a_whole_process_leaves_its_report_where_it_is_told_to(tmp_path: Path) -> None:
    asked = {"FLROUTE_SESSION": "1", "FLROUTE_DEVICE": "reference", "FLROUTE_REPORTS": str(tmp_path)}
    assert run("-c", "import torch; torch.ones(2) + 1", **asked).returncode == 0
    (path,) = tmp_path.iterdir()
    assert [d["op"] for d in json.loads(path.read_text())["decisions"]][-1] == "aten::add.Tensor"
    path.unlink()
    assert run("-c", "import torch", **asked).returncode == 0
    assert list(tmp_path.iterdir()) == [], "nothing to report"
    gone = run(
        "-c", "import torch; torch.ones(2) + 1", **{**asked, "FLROUTE_REPORTS": str(tmp_path / "absent")}
    )
    assert (gone.returncode, gone.stderr) == (0, "")
