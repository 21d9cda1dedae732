"""Every case of ``differential_cases``, compiled, against what Triton's interpreter computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import differential_cases
import pytest
import torch

from flroute.reference_vendor.triton_cpu.lowering.core import HANDLERS

IN_THEIR_PARENTS = {  # what ends a region is read by the op whose region it is
    "scf.condition", "scf.yield", "tt.reduce.return", "tt.scan.return",
}  # fmt: skip
ELSEWHERE = {  # what the interpreter does not have, or has wrong: bfloat16
    "tt.extern_elementwise": "test_libdevice", "tt.map_elementwise": "test_language", "tt.fp_to_fp": "test_conversions",
}  # fmt: skip
REORDERED = (
    "blocks-dot",
    "blocks-sum",
    "blocks-own",
    "blocks-cumsum",
    "blocks-scan",
    "memory-add",
    "binary-fma",
    "product",
)
APPROXIMATE = ("functions", "random")


def run_as_script(what: str, place: Path, **variables: str) -> Path:
    """In a process of its own: Triton decides when a kernel is decorated whether it will be interpreted."""
    script = Path(differential_cases.__file__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), what, str(place)],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor | str]:
    place = tmp_path_factory.mktemp("interpreted") / "results.pt"
    found: dict[str, torch.Tensor | str] = torch.load(run_as_script("results", place, TRITON_INTERPRET="1"))
    return found


@pytest.mark.filterwarnings("ignore")  # of Triton's, about what some kernels use
@pytest.mark.parametrize("name", differential_cases.cases())
def test_as_interpreted(name: str, interpreted: dict[str, torch.Tensor | str]) -> None:
    expected = interpreted[name]
    assert isinstance(expected, torch.Tensor), expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = differential_cases.cases()[name]()
    eps = torch.finfo(found.dtype).eps if found.is_floating_point() else 0
    if name.startswith(REORDERED):
        scale = expected.abs().nan_to_num(0, 0, 0).max().item()
        torch.testing.assert_close(
            found, expected, rtol=8 * eps, atol=64 * eps * max(scale, 1.0), equal_nan=True
        )
    elif name.startswith(APPROXIMATE):
        torch.testing.assert_close(found, expected, rtol=8 * eps, atol=2 * eps, equal_nan=True)
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_every_op_that_is_lowered_is_in_a_case(tmp_path: Path) -> None:
    place = run_as_script("ops", tmp_path / "ops.json", FLROUTE_CACHE_DIR=str(tmp_path / "cache"))
    occurring = set(json.loads(place.read_text()))
    assert len(occurring) > 50
    assert occurring - IN_THEIR_PARENTS == set(HANDLERS) - set(ELSEWHERE)
