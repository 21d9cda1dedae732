"""The device guard that PyTorch's C++ asks: patched where its layout is known, and proved before it is trusted."""

from __future__ import annotations

import atexit

import torch

from flroute.device import table
from flroute.torch_compat import DeviceGuardPatch, layouts_are_known

_patch: DeviceGuardPatch | None = None


def install() -> bool:
    """Patch the guard if this PyTorch's layout is known and the patch does what it should.

    Without it a bare ``"fl"`` in ``.to("fl")`` means ``fl:0``, and the session takes its mode off the stack during
    backward passes (``session.py``), so that an error in one still cannot end the process.
    """
    global _patch
    if _patch is None and layouts_are_known():
        patch = DeviceGuardPatch(table.current_index)
        patch.install()
        if _answers_with_current_device():
            _patch = patch
            atexit.register(patch.remove)
        else:
            patch.remove()
    return _patch is not None


def installed() -> bool:
    """Whether the patch is in place."""
    return _patch is not None


def _answers_with_current_device() -> bool:
    """The proof: PyTorch's C++ resolves a bare ``"fl"`` to the index we make current."""
    before = table.current_index()
    try:
        answers = []
        for index in (1, 0):
            table._current.index = index
            answers.append(torch.accelerator.current_device_index())
        return answers == [1, 0]
    finally:
        table._current.index = before
