"""Cumulative sums along the last dimension; a long row is shared by several programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, compiled_kernel
from flroute.reference_vendor.compiled.sums import row_sums
from flroute.reference_vendor.memory import empty

BLOCK = 1024
CHUNK = 1 << 17
"""Elements of a row from twice which on it is worth being read once more, so that threads can share it."""
_SOURCE = Source("scans", "common")


def _along_last(x: Any, dim: int, *, dtype: torch.dtype | None = None) -> bool | str:
    if dtype not in (None, x.dtype):
        return f"a result of {dtype}"
    return (x.ndim > 0 and dim in (-1, x.ndim - 1)) or "not along the last dimension"


@compiled_kernel("aten::cumsum", size="cumsum", when=_along_last)
def cumsum(x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    out, width = empty(x.shape, x.dtype), x.shape[-1]
    if out.size == 0:
        return out
    before = np.zeros(out.size // width)
    if len(before) == 1 and width > 2 * CHUNK:
        width, before = CHUNK, np.cumsum([0.0, *row_sums(x, CHUNK)[:-1]])
    _SOURCE.launch("cumsum", len(before), x, out, before, width, out.size, BLOCK=min(BLOCK, block_of(width)))
    return out
