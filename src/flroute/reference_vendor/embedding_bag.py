"""Bags of embeddings: the sum, mean or maximum of the rows that each bag names."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.sums import accurate_sum, sum_by_index
from flroute.reference_vendor.support import FLOAT_TYPES, Array, Result, narrow, quiet
from flroute.vendor import Unsupported, kernel

SUM, MEAN, MAX = range(3)


def _float_table(weight: torch.Tensor, *others: Any, **named: Any) -> bool | str:
    for other in (*others, *named.values()):
        if (
            isinstance(other, torch.Tensor)
            and other.dtype.is_floating_point
            and other.dtype is not weight.dtype
        ):
            return f"values of {weight.dtype} and of {other.dtype}"
    return weight.dtype in FLOAT_TYPES or f"values of {weight.dtype}"


def _bag_of_each(indices: Array, offsets: Array) -> Result:
    """The bag that each index is in: the last to start at or before it.

    Raises:
        Unsupported: offsets the host refuses.
    """
    if indices.ndim != 1 or offsets.ndim != 1 or indices.dtype != offsets.dtype or indices.dtype.kind != "i":
        raise Unsupported(f"indices {indices.dtype}{list(indices.shape)}, offsets {list(offsets.shape)}")
    if offsets.size and (offsets[0] != 0 or offsets[-1] > indices.size or np.any(offsets[1:] < offsets[:-1])):
        raise Unsupported("offsets that do not rise from 0 to the number of indices")
    if indices.size and not offsets.size:
        raise Unsupported("indices that are in no bag")
    return np.searchsorted(offsets, np.arange(indices.size), side="right") - 1


def _check_range(indices: Array, rows: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= rows):
        raise Unsupported(f"an index outside of a table of {rows} rows")


@kernel("aten::_embedding_bag", "aten::_embedding_bag_forward_only", when=_float_table)
@quiet
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """The bags; the bag of each index; the sizes of the bags; and, of a maximum, the row each element came from.

    Rows ``padding_idx`` take no part and do not count. Where the host's fast path sums, it says nothing of the bags.
    """
    bag = _bag_of_each(indices, offsets)
    _check_range(indices, weight.shape[0])
    count = offsets.size - include_last_offset
    if count < 0 or weight.ndim != 2 or (include_last_offset and offsets[-1] != indices.size):
        raise Unsupported(f"{offsets.size} offsets for {indices.size} indices into {weight.shape}")
    if per_sample_weights is not None and (mode != SUM or per_sample_weights.shape != indices.shape):
        raise Unsupported(f"weights of shape {per_sample_weights.shape} for samples of shape {indices.shape}")
    taken = indices != padding_idx
    names, bags = indices[taken], bag[taken]
    sizes = np.bincount(bags, minlength=count).astype(indices.dtype)
    rows = weight[names]
    largest = np.zeros(count, indices.dtype)
    if mode == MAX:
        output, largest = _maxima(rows, names, bags, count)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights[taken][:, None]
        total = sum_by_index(rows, bags, count, 0)
        output = narrow(total / np.maximum(sizes, 1)[:, None] if mode == MEAN else total, weight)
    told = bag[:0] if mode == SUM and _is_fast(weight, per_sample_weights, padding_idx) else bag
    return output, told.astype(indices.dtype), sizes, largest


def _is_fast(weight: Array, per_sample_weights: Array | None, padding_idx: int) -> bool:
    """Whether the host sums without noting the bag of each index (EmbeddingBag.cpp, ``is_fast_path``)."""
    dense = weight.strides[1] == weight.itemsize and weight.dtype == np.float32 and padding_idx < 0
    return dense and (per_sample_weights is None or per_sample_weights.strides[0] == weight.itemsize)


def _maxima(rows: Array, names: Array, bags: Array, count: int) -> tuple[Array, Array]:
    """The largest element of each bag per column, zero in an empty bag, and the row of the table it is in."""
    if np.isnan(rows).any():
        raise Unsupported("a maximum among NaN, which depends on their order")
    output = np.zeros((count, rows.shape[1]), rows.dtype)
    origin = np.zeros((count, rows.shape[1]), names.dtype)
    if rows.size:
        found, starts = np.unique(bags, return_index=True)
        output[found] = np.maximum.reduceat(rows, starts, axis=0)
        number = np.where(rows == output[bags], np.arange(len(rows))[:, None], len(rows))
        origin[found] = names[np.minimum.reduceat(number, starts, axis=0)]
    return output, origin


@kernel("aten::_embedding_bag_backward", when=_float_table)
@quiet
def embedding_bag_backward(
    gradient: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    bag_size: Array,
    maximum_indices: Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Result:
    if sparse:
        raise Unsupported("a sparse gradient")
    if (
        scale_grad_by_freq
    ):  # the host divides by the frequency of another row (torch 2.13): its numbers are its own
        raise Unsupported("a gradient scaled by frequency")
    bag = _bag_of_each(indices, offsets)
    _check_range(indices, num_weights)
    taken = indices != padding_idx
    names, bags = indices[taken], bag[taken]
    if mode == MAX:
        return _maxima_backward(gradient, maximum_indices, np.unique(bags), num_weights)
    rows = gradient[bags]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[taken][:, None]
    if mode == MEAN:
        rows = rows / np.bincount(bags)[bags][:, None]
    table: Result = narrow(sum_by_index(rows, names, num_weights, 0), gradient)
    return table


def _maxima_backward(gradient: Array, origin: Array, filled: Array, rows: int) -> Result:
    """Each element's gradient goes to the one row it came from; ``filled`` are the bags that are not empty."""
    width = gradient.shape[1]
    flat = origin[filled] * width + np.arange(width)
    total = np.bincount(flat.ravel(), weights=gradient[filled].ravel(), minlength=rows * width)
    return narrow(total.reshape(rows, width), gradient)


@kernel("aten::_embedding_bag_per_sample_weights_backward", when=_float_table)
@quiet
def per_sample_weights_backward(
    gradient: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    offset2bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Result:
    if mode != SUM:
        raise Unsupported("weights per sample are for sums")
    bag = _bag_of_each(indices, offsets)
    _check_range(indices, weight.shape[0])
    products = accurate_sum(gradient[bag] * weight[indices], (1,))
    return narrow(np.where(indices == padding_idx, 0, products), gradient)
