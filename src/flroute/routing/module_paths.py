"""Where in a model a module stands: ``encoder.layer.3.attention``."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

_known: WeakKeyDictionary[torch.nn.Module, dict[int, str]] = WeakKeyDictionary()
"""For each outermost module the paths of those inside, by identity; looked up again where one has moved."""


def path_of(modules: Sequence[torch.nn.Module]) -> str | None:
    """The path of the innermost module that the outermost one knows of; its class's name where that is itself.

    Args:
        modules: under way, innermost first.
    """
    if not modules:
        return None
    root = modules[-1]
    paths = _known.get(root)
    for module in modules:
        path = paths.get(id(module)) if paths is not None else None
        if path is None or not _stands_at(root, path, module):
            paths = _known[root] = {id(found): name for name, found in root.named_modules()}
            path = paths.get(id(module))
        if path is not None:
            return path or type(root).__name__
    return type(root).__name__


def _stands_at(root: torch.nn.Module, path: str, module: torch.nn.Module) -> bool:
    try:
        return root.get_submodule(path) is module
    except AttributeError:
        return False
