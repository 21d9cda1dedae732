"""Who makes a call: the user's line, the module it stands in, and the phase of the program.

Found on the stack when a decision is first taken, so that calls cost nothing for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from flroute.torch_compat import MODULE_CALL, in_backward
from flroute.vocabulary import Phase

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_OPTIM = str(Path(torch.optim.__file__).resolve().parent)


class Caller(NamedTuple):
    """Where a call comes from.

    Attributes:
        site: ``file:line`` of the innermost frame outside PyTorch and flroute.
        module: path of the innermost module under way from the outermost one; the outermost itself goes by its class's
            name. ``None`` outside of modules, as in a backward pass: autograd's nodes know no modules.
        phase: backward inside the autograd engine, optimizer inside ``torch.optim`` unless a module is called from there.
    """

    site: str | None
    module: str | None
    phase: Phase


def find_caller() -> Caller:
    """The caller of whoever asks, from the frames of this thread."""
    site, phase = None, Phase.BACKWARD if in_backward() else None
    modules: list[torch.nn.Module] = []  # innermost first
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is MODULE_CALL:
            modules.append(frame.f_locals["self"])
            phase = phase or Phase.FORWARD
        elif phase is None and code.co_filename.startswith(_OPTIM):
            phase = Phase.OPTIMIZER
        elif site is None and not code.co_filename.startswith((_PACKAGE, _TORCH, "<")):
            site = f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return Caller(site, _path_of(modules), phase or Phase.FORWARD)


_known: WeakKeyDictionary[torch.nn.Module, dict[int, str]] = WeakKeyDictionary()
"""For each outermost module the paths of those inside, by identity; looked up again where one has moved."""


def _path_of(modules: list[torch.nn.Module]) -> str | None:
    """The path of the innermost module that the outermost one knows of."""
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
