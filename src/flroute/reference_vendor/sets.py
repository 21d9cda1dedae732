"""Tensors as sets of values: unique elements, membership, and places in a sorted sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.promotion import promoted, promoting
from flroute.reference_vendor.sorting import SORTED, stable_order
from flroute.reference_vendor.support import NUMBERS, REALS, UNSIGNED, Array, Result, axes
from flroute.vendor import Unsupported, kernel

_COMPARED = (*SORTED, *UNSIGNED)

_NOTHING = np.empty(0, np.int64)
"""What PyTorch returns for indices or counts that were not asked for; to be copied."""


def _runs(starts: Array, inverse: bool, counts: bool) -> tuple[Array, Array]:
    """For each element which run it is in, and how long each run is; ``starts`` marks the first of each."""
    lengths = np.diff(np.append(np.flatnonzero(starts), starts.size)) if counts else _NOTHING.copy()
    return (np.cumsum(starts) - 1 if inverse else _NOTHING.copy()), lengths


def _starts(x: Array) -> Array:
    """Which elements of a flat array differ from the one before; a NaN always does."""
    starts = np.ones(x.size, bool)
    np.not_equal(x[1:], x[:-1], out=starts[1:])
    return starts


@kernel("aten::_unique2", dtypes=_COMPARED)
def unique(
    x: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Result, Result, Result]:
    """Sorted, whether asked for or not: equal elements are neighbours then."""
    order = stable_order(x.reshape(-1))
    ranked = x.reshape(-1)[order]
    starts = _starts(ranked)
    runs, counts = _runs(starts, return_inverse, return_counts)
    if return_inverse:
        inverse = np.empty(x.shape, np.int64)
        inverse.reshape(-1)[order] = runs
        runs = inverse
    return ranked[starts], runs, counts


@kernel("aten::_unique", dtypes=_COMPARED)
def unique_with_inverse(x: Array, sorted: bool = True, return_inverse: bool = False) -> tuple[Result, Result]:
    return unique(x, sorted, return_inverse)[:2]


@kernel("aten::unique_dim", dtypes=_COMPARED)
def unique_dim(
    x: Array, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Result, Result, Result]:
    """Unique slices along a dimension, in the order of their elements, the first one first."""
    slices = _slices(x, dim)
    order = np.lexsort(slices.T[::-1]) if slices.size else np.arange(len(slices))
    kept, runs, counts = _unique_neighbours(slices[order])
    inverse = np.empty(len(slices), np.int64)
    inverse[order] = runs
    return _as_slices(slices[order][kept], x, dim), inverse, counts


@kernel("aten::unique_dim_consecutive", dtypes=_COMPARED)
def unique_dim_consecutive(
    x: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Result, Result, Result]:
    return unique_consecutive(x, return_inverse, return_counts, dim)


@kernel("aten::unique_consecutive", dtypes=_COMPARED)
def unique_consecutive(
    x: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Result, Result, Result]:
    if dim is None:
        flat = x.reshape(-1)
        starts = _starts(flat)
        inverse, counts = _runs(starts, return_inverse, return_counts)
        return flat[starts], inverse.reshape(x.shape) if return_inverse else inverse, counts
    slices = _slices(x, dim)
    kept, inverse, counts = _unique_neighbours(slices)
    return _as_slices(slices[kept], x, dim), inverse, counts


def _slices(x: Array, dim: int) -> Array:
    """A row for each slice along ``dim``."""
    if x.ndim == 0:
        raise Unsupported("slices of a tensor without dimensions")
    (axis,) = axes(dim, x.ndim)
    if x.size == 0 and (x.shape[axis] or x.shape.count(0) > 1):
        raise Unsupported(f"unique slices of shape {x.shape}")
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], x.size // max(x.shape[axis], 1))


def _unique_neighbours(slices: Array) -> tuple[Array, Array, Array]:
    starts = np.ones(len(slices), bool)
    starts[1:] = (slices[1:] != slices[:-1]).any(axis=1)
    return (starts, *_runs(starts, True, True))


def _as_slices(rows: Array, x: Array, dim: int) -> Array:
    axis = dim % x.ndim
    if rows.size == 0:
        return np.empty((*x.shape[:axis], len(rows), *x.shape[axis + 1 :]), x.dtype)
    return np.moveaxis(rows.reshape(len(rows), *x.shape[:axis], *x.shape[axis + 1 :]), 0, axis)


# -- membership ---------------------------------------------------------------------------------------


@promoting("aten::isin.Tensor_Tensor", dtypes=NUMBERS)
def isin(
    elements: Array, test_elements: Array, *, assume_unique: bool = False, invert: bool = False
) -> Result:
    """A NaN is in no set."""
    elements, test_elements = promoted(elements, test_elements)
    kind: Any = None if elements.dtype.kind in "iu" else "sort"
    return np.isin(elements, test_elements, invert=invert, kind=kind)


@kernel("aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor")
def isin_of_number(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> Result:
    """Tensor and number take part in type promotion."""
    return isin(elements, test_elements, invert=invert)


@kernel("aten::equal", dtypes=(*REALS, *UNSIGNED, "float16", "complex64", "complex128"))
def equal(x: Array, other: Array) -> bool:
    return x.shape == other.shape and bool((x == other).all())


# -- places in a sorted sequence ----------------------------------------------------------------------


def _places(boundaries: Array, values: Any, out_int32: bool, right: bool) -> Result:
    """How many boundaries lie before each value; NaN is above all of them."""
    if boundaries.dtype.kind == "f" and np.isnan(boundaries).any():
        raise Unsupported("a NaN among the boundaries, which is no order")
    places = np.searchsorted(boundaries, values, side="right" if right else "left")
    return np.asarray(places, np.int32 if out_int32 else np.int64)


@kernel("aten::bucketize.Tensor", dtypes=NUMBERS)
def bucketize(x: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Result:
    if boundaries.ndim != 1:
        raise Unsupported(f"boundaries of shape {boundaries.shape}")
    return _places(boundaries, x, out_int32, right)


@kernel("aten::bucketize.Scalar")
def bucketize_number(x: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Result:
    """Boundaries and number take part in type promotion."""
    sequence, number = promoted(boundaries, x)
    return bucketize(number, sequence, out_int32=out_int32, right=right)


@kernel("aten::searchsorted.Tensor", dtypes=NUMBERS, mixed=True)
def searchsorted(
    sorted_sequence: Array,
    x: Array,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Result:
    """One sequence for all values, or one for each row of them."""
    if sorted_sequence.dtype != x.dtype or side not in (None, "left", "right") or (side == "left" and right):
        raise Unsupported(f"values of {x.dtype} in a sequence of {sorted_sequence.dtype}, side={side!r}")
    right = right or side == "right"
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape:
            raise Unsupported(f"a sorter of shape {sorter.shape}")
        sorted_sequence = np.take_along_axis(sorted_sequence, sorter, axis=-1)
    if sorted_sequence.ndim == 1:
        return _places(sorted_sequence, x, out_int32, right)
    if sorted_sequence.ndim == 0 or sorted_sequence.shape[:-1] != x.shape[:-1]:
        raise Unsupported(f"values of shape {x.shape} in sequences of shape {sorted_sequence.shape}")
    return _rowwise(sorted_sequence, x, right).astype(np.int32 if out_int32 else np.int64)


@kernel("aten::searchsorted.Scalar", dtypes=NUMBERS, mixed=True)
def searchsorted_number(
    sorted_sequence: Array,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Result:
    """Sequence and number take part in type promotion."""
    if sorted_sequence.ndim != 1:
        raise Unsupported(f"a number in sequences of shape {sorted_sequence.shape}")
    sequence, number = promoted(sorted_sequence, x)
    return searchsorted(sequence, number, out_int32=out_int32, right=right, side=side, sorter=sorter)


def _rowwise(sequences: Array, values: Array, right: bool) -> Array:
    """A binary search in all rows at once: each round halves the stretch in which each place lies."""
    low = np.zeros(values.shape, np.int64)
    high = np.full(values.shape, sequences.shape[-1])
    for _ in range(sequences.shape[-1].bit_length()):
        middle = (low + high) // 2
        found = np.take_along_axis(sequences, np.minimum(middle, sequences.shape[-1] - 1), axis=-1)
        after = ~(found > values if right else found >= values)  # so for a NaN, too
        open_ = low < high
        low = np.where(open_ & after, middle + 1, low)
        high = np.where(open_ & ~after, middle, high)
    return low
