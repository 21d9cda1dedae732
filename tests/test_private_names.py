"""Private names of PyTorch are the business of one package, ``torch_compat``; a release that lacks one is refused by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

import flroute
from flroute import torch_compat
from flroute.errors import CompatibilityError
from flroute.torch_compat import names

SOURCE = Path(flroute.__file__).parent


def dotted(node: ast.AST) -> list[str]:
    """``torch._C.x`` in parts; nothing for what does not start at a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return [*before, node.attr]
    return []


def private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def private_names_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            parts = dotted(node)
        else:
            continue
        # an op is named as PyTorch names it: torch.ops.aten._softmax
        if parts and parts[0] == "torch" and parts[1:2] != ["ops"] and any(map(private, parts)):
            yield ".".join(parts)


def test_only_torch_compat_names_what_is_private() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "torch_compat" and (names := sorted(private_names_in(path.read_text())))
    }
    assert not found


def test_the_search_finds_them() -> None:
    source = "import torch\nfrom torch.utils._pytree import tree_map\ntorch._C._x()\ntorch.ops.aten._softmax\ntorch.__version__"
    assert set(private_names_in(source)) == {"torch.utils._pytree.tree_map", "torch._C._x", "torch._C"}


def test_what_the_package_offers_is_listed() -> None:
    assert all(hasattr(torch_compat, name) for name in torch_compat.__all__)
    assert not [name for name in torch_compat.__all__ if name.startswith("_")]


def test_a_missing_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.PRIVATE_NAMES, "torch._C._no_such_thing", "a test")
    with pytest.raises(CompatibilityError, match=r"has no torch\._C\._no_such_thing \(a test\)"):
        torch_compat.check_version()
    with pytest.raises(CompatibilityError, match="needs PyTorch"):
        torch_compat.check_version(Version("2.0"))
