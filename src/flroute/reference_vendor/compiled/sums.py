"""Sums and means over all elements or the last dimensions; added up block by block in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.compiled.launch import Array, Source, ceil_div, compiled_kernel
from flroute.reference_vendor.memory import empty

BLOCK = 1024
CHUNK = 1 << 16
"""Elements that one program adds up where there is one long row, so that threads can share it."""
_SOURCE = Source("sums", "common")


def row_sums(x: Array, width: int) -> Array:
    """The sum of each ``width`` elements, in double precision; the last may be fewer."""
    sums = np.empty(ceil_div(x.size, width))
    _SOURCE.launch("sum_of_rows", len(sums), x, sums, width, x.size, 1.0, BLOCK=BLOCK)
    return sums


def _sum(x: Array, kept: Sequence[int], divisor: float = 1) -> Array:
    """Sums of equally many elements in a row each, divided, in a new array of shape ``kept``."""
    out, scale = empty(kept, x.dtype), 1 / divisor
    if out.size == 0:
        return out
    width = x.size // out.size
    if out.size > 1 or width <= 2 * CHUNK:
        _SOURCE.launch("sum_of_rows", out.size, x, out, width, x.size, scale, BLOCK=BLOCK)
        return out
    parts = row_sums(x, CHUNK)
    _SOURCE.launch("sum_of_rows", 1, parts, out, len(parts), len(parts), scale, BLOCK=BLOCK)
    return out


def _kept(shape: Sequence[int], dim: Sequence[int] | None, keepdim: bool) -> list[int] | None:
    """The shape of the result; None unless the dimensions are the last ones."""
    count = len(shape)
    over = sorted({d % count for d in dim}) if dim and count else list(range(count))
    if over != list(range(count - len(over), count)):
        return None
    return [*shape[: count - len(over)], *([1] * len(over) if keepdim else [])]


def _over_last(
    x: Any, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> bool | str:
    if dtype not in (None, x.dtype):
        return f"a result of {dtype}"
    if dim and not all(-max(x.ndim, 1) <= d < max(x.ndim, 1) for d in dim):
        return "a dimension out of range"
    return _kept(x.shape, dim, keepdim) is not None or "not over the last dimensions"


@compiled_kernel("aten::sum", size="sum_all", when=_over_last)
def sum_all(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return _sum(x, ())


@compiled_kernel("aten::sum.dim_IntList", size="sum_dim", when=_over_last)
def sum_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    return _sum(x, _kept(x.shape, dim, keepdim) or ())


@compiled_kernel("aten::mean", size="mean_all", when=_over_last)
def mean_all(x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return _sum(x, (), divisor=x.size)


@compiled_kernel("aten::mean.dim", size="mean_dim", when=_over_last)
def mean_dim(
    x: Array, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    kept = _kept(x.shape, dim, keepdim) or ()
    return _sum(x, kept, divisor=x.size / max(prod(kept), 1))
