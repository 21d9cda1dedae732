"""Who asks: PyTorch and flroute are told the truth about a device, everybody else what cuda would say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

_OWN = (str(Path(__file__).resolve().parent.parent), str(Path(torch.__file__).resolve().parent), "<frozen")
_LIBRARY = tuple(str(Path(torch.__file__).resolve().parent / name) for name in ("library.py", "_library"))
_IN_BETWEEN = tuple(f"/{name}.py" for name in ("contextlib", "functools", "typing_extensions"))
_PASS_ON = ("__torch_function__", "pass_on")
"""Handlers of modes, and what stands before a replacement (``patches.py``)."""
_is_own: dict[str, bool] = {}  # by file name, for this is asked at every getter


def asker(depth: int) -> FrameType:
    """The frame that asks, ``depth`` above the caller; some above it only pass questions on."""
    return _asking(sys._getframe(depth + 1))


def _asking(frame: FrameType) -> FrameType:
    while frame.f_code.co_name in _PASS_ON and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_own(frame: FrameType) -> bool:
    """Whether the code is PyTorch's or flroute's."""
    return is_own_file(frame.f_code.co_filename)


def is_own_file(name: str) -> bool:
    """Whether code of this file is PyTorch's or flroute's."""
    known = _is_own.get(name)
    if known is None:
        known = _is_own[name] = name.startswith(_OWN)
    return known


def registrar(frame: FrameType) -> FrameType:
    """The frame that asks ``torch.library`` to register something: modules of PyTorch's do so, too."""
    while frame.f_code.co_filename.startswith(_LIBRARY) and frame.f_back is not None:
        frame = _asking(frame.f_back)
    return frame


def user_frame(frame: FrameType) -> FrameType:
    """The innermost frame at or above ``frame`` that is neither's, nor a decorator's of the standard library; or the outermost."""
    while (is_own(frame) or frame.f_code.co_filename.endswith(_IN_BETWEEN)) and frame.f_back is not None:
        frame = frame.f_back
    return frame
