"""Every kernel of ``differential_kernels``, compiled, against what Triton's interpreter computes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import differential_kernels
import pytest
import torch


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor | str]:
    """From a process of its own: Triton decides when a kernel is decorated whether it will be interpreted."""
    place = tmp_path_factory.mktemp("interpreted") / "results.pt"
    script = Path(differential_kernels.__file__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(place)],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, torch.Tensor | str] = torch.load(place)
    return found


@pytest.mark.filterwarnings("ignore")  # of Triton's, about what some kernels use
@pytest.mark.parametrize("name", differential_kernels.cases())
def test_as_interpreted(name: str, interpreted: dict[str, torch.Tensor | str]) -> None:
    expected = interpreted[name]
    assert isinstance(expected, torch.Tensor), expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = differential_kernels.cases()[name]()
    if name.startswith(
        ("blocks-dot", "blocks-sum", "blocks-own", "blocks-cumsum", "blocks-scan", "memory-add", "binary-fma")
    ):
        eps = torch.finfo(found.dtype).eps if found.is_floating_point() else 0
        scale = expected.abs().nan_to_num(0, 0, 0).max().item()
        torch.testing.assert_close(
            found, expected, rtol=8 * eps, atol=64 * eps * max(scale, 1.0), equal_nan=True
        )  # sums in another order
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
