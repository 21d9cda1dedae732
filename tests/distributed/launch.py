"""Starting ranks: what the fixtures and the tests of this folder share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LONGEST = 150  # seconds; only a hang takes that long

Ranks = Callable[..., list[str]]
Torchrun = Callable[..., dict[str, Any]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", **more}
