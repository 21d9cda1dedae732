"""Gradients added up into embedding tables; the indices are checked on the way. To pick rows, numpy is as fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.compiled.launch import Array, Source, block_of, ceil_div, compiled_kernel
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import FLOAT_TYPES, check_indices

COLUMNS = 256
"""Of the table, that one program works on."""
INDICES = (torch.int64, torch.int32)
_SOURCE = Source("embedding")
_DTYPES = ("float32", "float64", "int64", "int32")


def _adds_in_order(
    gradient: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> bool | str:
    if scale_grad_by_freq:
        return "gradients scaled by how often a row is picked"
    if gradient.dtype not in FLOAT_TYPES or indices.dtype not in INDICES:
        return f"gradients of {gradient.dtype} for indices of {indices.dtype}"
    if gradient.ndim == 0 or gradient.numel() != indices.numel() * gradient.shape[-1]:
        return f"a gradient of shape {tuple(gradient.shape)} for indices of shape {tuple(indices.shape)}"
    return (gradient.shape[-1] > 0 and num_weights > 0) or "nothing to add up"


@compiled_kernel(
    "aten::embedding_dense_backward",
    size="embedding_backward",
    dtypes=_DTYPES,
    when=_adds_in_order,
    mixed=True,
)
def embedding_backward(
    gradient: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    width = gradient.shape[-1]
    table, wrong = empty((num_weights, width), gradient.dtype), np.zeros(1, np.int32)
    table.fill(0)
    _SOURCE.launch(
        "embedding_backward", ceil_div(width, COLUMNS), gradient, indices, table, wrong, indices.size, num_weights, width,
        padding_idx, BLOCK=min(block_of(width), COLUMNS),
    )  # fmt: skip
    if wrong[0]:
        check_indices(indices, num_weights, "index out of range in self")
    return table
