"""Which of PyTorch's samples are tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import pytest
import torch

from .target import Target

T = TypeVar("T")
EVERY, AT_MOST = 5, 10
"""Some pooling and loss functions have hundreds of samples, in each dtype."""


def chosen(samples: Sequence[T], dtype: torch.dtype, target: Target, config: pytest.Config) -> Sequence[T]:
    """All in float32 on the reference vendor, and with ``--samples=all``; else every fifth, and at most 10, spread over all."""
    in_full = dtype is torch.float32 and target.name.startswith("reference")
    if in_full or config.getoption("samples", "some") == "all":
        return samples
    return samples[:: max(EVERY, math.ceil(len(samples) / AT_MOST))]
