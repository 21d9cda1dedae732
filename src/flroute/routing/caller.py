"""Who makes a call: the user's line, the module it stands in, and the phase of the program.

Found on the stack when a decision is first taken, so that calls cost nothing for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from flroute.routing.module_paths import path_of
from flroute.routing.node_modules import mark_of_current_node
from flroute.torch_compat import BACKWARD_CALL, MODULE_CALL, in_backward
from flroute.vocabulary import Phase

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_OPTIM = str(Path(torch.optim.__file__).resolve().parent)


class Caller(NamedTuple):
    """Where a call comes from.

    Attributes:
        site: ``file:line`` of the innermost frame outside PyTorch and flroute.
        module: path of the innermost module under way from the outermost one; the outermost itself goes by its class's
            name. In a backward pass the module that made the node at work, in a session with ``modules=True``. ``None``
            outside of modules.
        phase: backward inside the autograd engine, optimizer inside ``torch.optim`` unless a module is called from there.
    """

    site: str | None
    module: str | None
    phase: Phase


def find_caller() -> Caller:
    """The caller of whoever asks, from the frames of this thread."""
    backward = in_backward()
    site, module, phase = None, None, Phase.BACKWARD if backward else None
    mark = mark_of_current_node() if backward else None
    modules: list[torch.nn.Module] = []  # innermost first
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is MODULE_CALL:
            modules.append(frame.f_locals["self"])
            phase = phase or Phase.FORWARD
        elif code is BACKWARD_CALL and mark is not None and module is None:
            module = mark.path_within(modules)
        elif phase is None and code.co_filename.startswith(_OPTIM):
            phase = Phase.OPTIMIZER
        elif site is None and not code.co_filename.startswith((_PACKAGE, _TORCH, "<")):
            site = f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return Caller(site, module or path_of(modules), phase or Phase.FORWARD)
