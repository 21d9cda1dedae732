"""The page about a migration says what happens when one follows it."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "migration.md"
PROJECT = ROOT / "examples" / "migration"


def without_rounding(page: str) -> str:
    """The page without what another processor rounds otherwise: fractions, and every number of the comparison."""
    before, compare, after = re.split(r"(?=^## Compare)|(?=^## Keep)", page, flags=re.MULTILINE)
    compare = re.sub(r"\b\d+(\.\d+)?(e[-+]?\d+)?\b", "#", compare)
    fractions = re.compile(r"\d+\.\d{3,}")
    return re.sub(r" +", " ", fractions.sub("#", before) + compare + fractions.sub("#", after))


@pytest.mark.slow
def test_the_page_is_what_the_commands_say() -> None:
    shown = PAGE.read_text(encoding="utf-8")
    about = re.search(r"with PyTorch (\S+):", shown)
    assert about is not None
    if torch.__version__.partition("+")[0] != about[1]:
        pytest.skip(f"the page is about PyTorch {about[1]}")
    page = runpy.run_path(str(ROOT / "examples" / "follow_a_migration.py"))["page"]()
    assert without_rounding(page) == without_rounding(shown), (
        "docs/migration.md is out of date: python examples/follow_a_migration.py docs"
    )


def test_the_page_shows_what_it_is_for() -> None:
    """Each command, the fallback that was in the way, the edit that it took, and that it worked."""
    page = PAGE.read_text(encoding="utf-8")
    for command in (
        "scan .",
        "check model.py:example",
        "run --strict train.py",
        "compare model.py:example",
        "bridge --write",
    ):
        assert f"$ flroute {command}" in page
    for what in (
        "data.py:22: no_kernel",
        "--resume checkpoint.pt\nepoch 3",
        "fallbacks: none",
        "passed: nothing is beyond",
    ):
        assert what in page
    assert str(ROOT) not in page
    assert "/tmp" not in page
    assert "site-packages" not in page


def test_training_goes_well_on_the_page() -> None:
    accuracies = [
        float(number) for number in re.findall(r"accuracy (\d\.\d+)", PAGE.read_text(encoding="utf-8"))
    ]
    assert len(accuracies) == 5
    assert min(accuracies) > 0.8


def test_the_project_is_cuda_code_that_knows_nothing_of_flroute() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(PROJECT.glob("*.py")))
    assert "flroute" not in text
    for what in (".cuda()", "torch.cuda.amp", 'device="cuda"', 'map_location="cuda:0"', "pin_memory=True"):
        assert what in text


def test_python_on_the_page_is_python_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the project's model in place of a trained one, and one batch for a loader."""
    from flroute import bridge

    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    imported = {
        alias.name
        for node in ast.walk(ast.parse(code[1]))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    vit = runpy.run_path(str(PROJECT / "model.py"))["ViT"]
    torch.save({"model": vit().state_dict(), "epoch": 1}, tmp_path / "checkpoint.pt")
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(bridge, name) for name in imported}
    names |= {"ViT": vit, "loader": [(torch.rand(2, 1, 8, 8), torch.zeros(2))]}
    exec(code[1].partition("\n")[2], names)
    assert names["logits"].device.type == "fl"
    assert names["logits"].dtype == torch.float16
