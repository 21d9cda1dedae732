"""docs/bisect.md shows what its example says, and no option that there is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flroute.cli import app

ROOT = Path(__file__).parent.parent.parent
EXAMPLE, PAGE = ROOT / "examples" / "bisect_a_metric.py", ROOT / "docs" / "bisect.md"


@pytest.fixture(autouse=True)
def _of_this_pytorch() -> None:
    about = re.search(r"with PyTorch (\S+)\.\n", PAGE.read_text())
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the page is about PyTorch {about[1]}")


def told(text: str) -> str:
    """But for the figures of metrics, which differ in their last digits from one processor to another."""
    return re.sub(r"\d+\.\d{4,}", "#", text)


def example(*arguments: str) -> str:
    """In a process of its own: the plugin that it registers would stay."""
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, check=True
    ).stdout


def test_what_the_function_finds_is_on_the_page() -> None:
    found = told(example().strip())
    assert found.startswith("aten::native_layer_norm: with its kernels")
    assert found in told(PAGE.read_text())


@pytest.mark.slow
def test_the_whole_page_is_what_the_example_writes(tmp_path: Path) -> None:
    example(str(tmp_path))
    written = (tmp_path / "bisect.md").read_text()
    assert told(written) == told(PAGE.read_text()), "python examples/bisect_a_metric.py docs"


def test_the_options_on_the_page_are_those_of_the_command() -> None:
    shown = CliRunner().invoke(app, ["bisect", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert set(re.findall(r"`(--[a-z]+)", PAGE.read_text())) <= set(re.findall(r"--[a-z]+", shown))
    for option in ("--tolerance", "--relative", "--good", "--metric", "--device", "--state", "--json"):
        assert option in shown
