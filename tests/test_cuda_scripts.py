"""The scripts themselves: the host can judge them, and the judge is honest."""

from __future__ import annotations

import ast
import math
import re

import pytest

from cuda_scripts import FOLDER, SCRIPTS, Script, differences, host_numbers, numbers
from run_on_host import for_the_host

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


def test_the_table_names_every_script() -> None:
    assert sorted(script.path for script in SCRIPTS) == sorted(FOLDER.glob("*.py"))


@every_script
def test_a_script_is_plain_cuda_code(script: Script) -> None:
    """What ``flroute run`` is to run unmodified knows nothing of flroute, and does not run on a host as it is."""
    text = script.path.read_text(encoding="utf-8")
    assert "cuda" in text
    assert "flroute" not in text
    assert not re.search(r"""["']fl(:\d)?["']""", text)
    assert 40 <= len(text.splitlines()) <= 120


@every_script
def test_the_judge_leaves_no_cuda_and_no_line_out(script: Script) -> None:
    """Code only: names that authors chose and sentences may say cuda."""
    text = script.path.read_text(encoding="utf-8")
    judged = for_the_host(text)
    assert len(judged.splitlines()) == len(text.splitlines())
    tree = ast.parse(judged)
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [name for name in calls if name.endswith(".cuda")]
    assert not re.search(r"\btorch\.cuda\b", judged)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not {"cuda", "cuda:0", "nccl"} & texts


@pytest.mark.slow
@every_script
def test_the_host_gives_numbers(script: Script) -> None:
    found = host_numbers(script)
    assert len(found) >= 1
    assert all(math.isfinite(value) for value in found.values())


def test_numbers_are_lines_of_a_name_and_a_number() -> None:
    shown = "epoch 1: loss=2.0\nloss 1.25\ntraining took 0.3s\n0.1 ms per step\nnorm 1e-05\nd_loss -3\n"
    assert numbers(shown) == {"loss": 1.25, "norm": 1e-05, "d_loss": -3.0}


def test_differences_are_relative_above_one_and_absolute_below() -> None:
    expected = {"large": 1000.0, "small": 0.001}
    assert differences({"large": 1000.05, "small": 0.00105}, expected, 1e-4) == []
    assert len(differences({"large": 1000.2, "small": 0.0012}, expected, 1e-4)) == 2
    assert differences({"large": 1000.0}, expected, 1e-4) == ["small is missing"]
    assert differences({**expected, "more": 1.0}, expected, 1e-4) == ["more is new"]
    assert len(differences({"large": math.nan, "small": 0.001}, expected, 1e-4)) == 1
