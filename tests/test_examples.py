"""The examples run and show what they promise."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from support import needs_triton

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_first_session(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "first_session.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "are on fl:0 and fl:0" in shown
    assert "reference/numpy:mm" in shown


def test_sentences_are_embedded_as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # the example sets it: take it back afterwards
    text = io.StringIO()
    found = runpy.run_path(str(EXAMPLES / "embed_sentences.py"))["main"](Console(file=text, width=160))
    assert found["cosine"] >= 0.99999
    assert found["native_share"] == 1
    assert not found["fallbacks"]
    likeness = found["embeddings"] @ found["embeddings"].T
    guitar, music, market, shares, oven = range(5)
    assert likeness[guitar, music] > 0.4 > likeness[guitar, [market, shares, oven]].max()
    assert likeness[market, shares] > 0.4 > likeness[market, [guitar, music, oven]].max()
    assert "native share on fl:0: 100.0%, 0 fallbacks" in text.getvalue()
    assert "ms on the device" in text.getvalue()


def test_triton_kernels_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: the kernel that it registers would stay."""
    needs_triton()
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path))
    command = [sys.executable, str(EXAMPLES / "triton_kernel.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"aten::silu +native +reference/triton:fused_silu +fl:0 +2 ", shown)
    assert "fallbacks: none" in shown
    assert "silu differs by 0.0e+00" in shown
    kept = {path.name.partition("-")[0] for path in tmp_path.iterdir()}
    assert kept >= {"silu_kernel", "squared_relu_kernel"}


def test_the_report_in_the_docs_is_what_a_session_says(tmp_path: Path) -> None:
    docs, example = EXAMPLES.parent / "docs", runpy.run_path(str(EXAMPLES / "read_a_report.py"))
    example["write"](tmp_path)
    about = re.search(r"with PyTorch (\S+):", (docs / "report.md").read_text())
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the docs are about PyTorch {about[1]}")
    for name in ("report.md", "report.html"):
        assert (tmp_path / name).read_text() == (docs / name).read_text(), (
            f"docs/{name} is out of date: python examples/read_a_report.py docs"
        )


def test_the_report_in_the_docs_shows_what_it_is_for() -> None:
    page = (EXAMPLES.parent / "docs" / "report.md").read_text()
    for what in (
        "layer.0.attention.query",
        "native share",
        "optimizer",
        '"reason": "no_kernel"',
        "_standard_gamma_grad",
    ):
        assert what in page
    assert str(EXAMPLES.parent) not in page


def test_the_profile_in_the_docs_is_what_a_session_says(tmp_path: Path) -> None:
    """But for times, and what follows from them."""
    docs, example = EXAMPLES.parent / "docs", runpy.run_path(str(EXAMPLES / "read_a_profile.py"))
    example["write"](tmp_path)
    about = re.search(r"with PyTorch (\S+):", (docs / "profile.md").read_text())
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the docs are about PyTorch {about[1]}")

    def told(page: Path) -> tuple[list[tuple[str, ...]], str]:
        text = page.read_text()
        row = r"^(aten::\S+) +(\w+) +(\S+) +(\S+) +(\d+) .* us +([\d,]+)"
        return sorted(re.findall(row, text, re.MULTILINE)), text.partition("```text")[0] + text.rpartition(
            "```"
        )[2]

    assert told(tmp_path / "profile.md") == told(docs / "profile.md"), (
        "python examples/read_a_profile.py docs"
    )
    assert ("aten::addmm", "native", "reference/numpy:addmm", "fl:0", "2") in [
        row[:5] for row in told(docs / "profile.md")[0]
    ]
