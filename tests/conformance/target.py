"""The device under test, and the three modes in which it is tested."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

import flroute

HOST = torch.device("cpu")
PLAIN, SESSION, INFERENCE = "plain", "session", "inference"
MODES = (PLAIN, SESSION, INFERENCE)
"""Outside a session; in a session; in a session under ``torch.inference_mode``."""


class Target:
    """One device of one vendor.

    Attributes:
        name: as ``flroute.enable`` takes it.
        device: as PyTorch knows it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.device = torch.device(str(flroute.device(name if ":" in name else f"{name}:0")))

    def mode(self, name: str) -> AbstractContextManager[Any]:
        """The context in which the device works in a mode."""
        if name == PLAIN:
            return nullcontext()
        stack = ExitStack()
        stack.enter_context(flroute.enable(device=self.name, fallback="allow"))
        if name == INFERENCE:
            stack.enter_context(torch.inference_mode())
        return stack
