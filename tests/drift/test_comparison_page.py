"""What a comparison looks like: a page that stands by itself, JSON that any program reads, text that fits a terminal."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from rich.console import Console
from torch import nn

import flroute
from flroute.drift.compare.comparison import Comparison
from planted import Plant, models, planting

plant = pytest.fixture(planting)
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def wrong(plant: Plant) -> Comparison:
    plant("silu_is_flat_below_minus_three")
    return flroute.compare(*models.made("transformer"), a="faulty")


def picture(found: Comparison) -> ET.Element:
    part = re.search(r"<svg.*</svg>", found._repr_html_(), re.DOTALL)
    assert part is not None
    return ET.fromstring(part[0])


def test_the_plot_has_a_point_for_each_layer_forward_and_backward(wrong: Comparison) -> None:
    drawn = picture(wrong).findall("circle")
    layers = [t for t in wrong.tensors if t.what in ("output", "gradient")]
    assert len(drawn) == len(layers)
    red = [circle for circle in drawn if circle.get("fill") == "#d0342c"]
    assert len(red) == sum(t.excess > 1 for t in layers) > 0
    box = [float(number) for number in (picture(wrong).get("viewBox") or "").split()]
    for circle in drawn:
        assert 0 < float(circle.get("cx") or 0) < box[2]
        assert 0 < float(circle.get("cy") or 0) < box[3]


def test_larger_errors_stand_higher(wrong: Comparison) -> None:
    outputs = [t for t in wrong.tensors if t.what == "output"]
    heights = [float(c.get("cy") or 0) for c in picture(wrong).findall("circle")][: len(outputs)]
    exact = [h for h, t in zip(heights, outputs, strict=True) if t.relative == 0]
    worst = min(heights)
    assert heights[max(range(len(outputs)), key=lambda i: outputs[i].relative)] == worst
    assert all(h > worst for h in exact)


def test_words_of_the_page_take_the_colour_around_them(wrong: Comparison) -> None:
    words = {text.get("fill") for text in picture(wrong).findall("text")}
    assert words == {"currentColor", "#2f80d0", "#c2701b", "#d0342c"}


def test_names_are_escaped(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("<script>alert(1)</script>", nn.Linear(2, 2))
    page = flroute.compare(model, torch.ones(1, 2), a="reference").to_html(tmp_path / "page.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_infinite_errors_are_drawn_and_are_words_in_json(tmp_path: Path) -> None:
    class Overflows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (math.inf if x.device.type == "fl" else 1.0)

    found = flroute.compare(nn.Sequential(Overflows()), torch.ones(2, requires_grad=True), a="reference")
    assert not found.passed
    told = json.loads(found.to_json(tmp_path / "new" / "found.json").read_text())
    assert {t["excess"] for t in told["tensors"] if t["what"] == "output"} == {"inf"}
    assert len(picture(found).findall("circle")) == 4


def test_json_says_what_the_object_says(wrong: Comparison) -> None:
    told = json.loads(json.dumps(wrong.to_dict(), allow_nan=False))
    assert told["passed"] is False
    assert told["first_divergence"]["op"] == told["worst_layer"]["op"] == "aten::silu"
    assert len(told["ops"]) == len(wrong.ops)
    assert told["ops"][3]["phase"] == "forward"
    assert set(told["ops"][0]["local"]["difference"]) >= {
        "max_abs",
        "mean_abs",
        "max_rel",
        "mean_rel",
        "max_ulp",
        "cosine",
    }


@pytest.mark.parametrize("width", [100, 150, 220])
def test_a_terminal_shows_what_errs_first(wrong: Comparison, width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"), force_jupyter=False)  # noqa: SIM115, PTH123
    console.print(wrong)
    text = console.export_text()
    assert "first divergence: aten::silu in blocks.0" in text
    assert ("mean rel" in text) == (width >= 180)
    assert max(map(len, text.splitlines())) <= width


def test_a_browser_takes_the_page_without_complaint(wrong: Comparison, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no Chromium to look at pages with: apt-get install chromium")
    page = wrong.to_html(tmp_path / "page.html")
    ran = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in ran.stderr
    assert ran.stdout.count("<circle") == len(picture(wrong).findall("circle"))


# -- the page in the docs


def told(page: str) -> list[str]:
    """What a page says but for digits, which differ between processors, and for which ops of all that are right it shows."""
    lines = [re.sub(r"\s+", " ", re.sub(r"-?\d[\d.e+-]*", "#", line)).strip() for line in page.splitlines()]
    return [
        line
        for line in lines
        if not line.startswith(
            ("aten::", "most is added", "way ", "training ", "inference ", "compiled ", "exported ")
        )
    ]


def test_the_page_in_the_docs_is_what_a_comparison_says(tmp_path: Path) -> None:
    """In a process of its own: the kernel that the example registers would stay."""
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "compare_devices.py"), str(tmp_path)],
        check=True,
        capture_output=True,
    )
    page = (ROOT / "docs" / "compare.md").read_text()
    about = re.search(r"with PyTorch (\S+)\. ", page)
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the docs are about PyTorch {about[1]}")
    assert told((tmp_path / "compare.md").read_text()) == told(page), (
        "python examples/compare_devices.py docs"
    )
    assert (tmp_path / "compare.html").read_text().count("<circle") == (
        ROOT / "docs" / "compare.html"
    ).read_text().count("<circle")


def test_the_page_in_the_docs_shows_what_it_is_for() -> None:
    page = (ROOT / "docs" / "compare.md").read_text()
    assert "first divergence: aten::native_layer_norm in 1.norm" in page
    assert "passed: nothing is beyond its tolerance" in page
    assert "training: evaluation mode, autograd on" in page
    assert str(ROOT) not in page


def test_the_examples_model_is_one_that_the_command_takes() -> None:
    model, inputs = runpy.run_path(str(ROOT / "examples" / "compare_devices.py"))["make"]()
    assert model(inputs).shape == (4, 2)
