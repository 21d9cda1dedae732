"""Embedding tables: rows picked by index, and the sum of gradients back into them."""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.support import (
    EVERY,
    Array,
    Result,
    check_indices,
    float_values_long_index,
    narrow,
    quiet,
    wide,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::embedding", dtypes=EVERY, mixed=True)
def embedding(
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Result:
    if weight.ndim != 2 or indices.dtype not in (np.int64, np.int32):
        raise Unsupported(f"indices of {indices.dtype} into a table of shape {weight.shape}")
    check_indices(indices, weight.shape[0], "index out of range in self")
    if weight.flags.c_contiguous:
        return weight.take(indices, 0, mode="clip")  # the indices are checked already
    return weight[indices]


_FEW = 8
"""So many gradients of one row are added up one after the other, in their own precision."""


@kernel("aten::embedding_dense_backward", when=float_values_long_index)
@quiet
def embedding_dense_backward(
    gradient: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Result:
    flat = indices.reshape(-1)
    if gradient.ndim == 0 or gradient.size != flat.size * gradient.shape[-1]:
        raise Unsupported(f"a gradient of shape {gradient.shape} for indices of shape {indices.shape}")
    check_indices(flat, num_weights, "index out of range in self")
    width = gradient.shape[-1]
    table = np.zeros((num_weights, width), gradient.dtype)
    if flat.size == 0 or width == 0:
        return table
    # Equal indices side by side, so that each row is one sum over a stretch, in double precision.
    order = np.argsort(flat, kind="stable")
    rows, starts, counts = np.unique(flat[order], return_index=True, return_counts=True)
    gradients = gradient.reshape(-1, width)
    if counts.max() <= _FEW and not scale_grad_by_freq:
        for nth in range(counts.max()):  # no index twice in one addition
            more = counts > nth
            table[rows[more]] += gradients[order[starts[more] + nth]]
        if 0 <= padding_idx < num_weights:
            table[padding_idx] = 0
        return table
    sums = np.add.reduceat(gradients[order], starts, axis=0, dtype=np.float64)
    if scale_grad_by_freq:
        sums /= counts[:, None]
    table[rows] = sums
    if 0 <= padding_idx < num_weights:
        table[padding_idx] = 0
    return table


@kernel("aten::embedding_renorm_", when=float_values_long_index)
@quiet
def embedding_renorm(weight: Array, indices: Array, max_norm: float, norm_type: float) -> None:
    """The rows that are picked, each scaled down where its norm is larger than ``max_norm``."""
    if weight.ndim != 2 or norm_type <= 0:
        raise Unsupported(f"rows of {weight.shape} by their norm of order {norm_type}")
    check_indices(indices, weight.shape[0], "index out of range in self")
    picked = np.unique(indices)
    norms = np.linalg.norm(wide(weight[picked]), norm_type, axis=1)
    large = norms > max_norm
    weight[picked[large]] *= narrow(max_norm / (norms[large] + 1e-7), weight)[:, None]
