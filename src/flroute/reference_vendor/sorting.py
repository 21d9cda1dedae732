"""Order: sort, topk, order statistics and the most frequent value.

PyTorch orders NaN above everything, keeps -0 and 0 equal, and leaves equal elements in their order if the sort is stable; here
it always is. So that numpy's fast, unstable sort can be used, each element becomes an integer that orders alike, with
its position in the lower half: no two are equal then.
"""

from __future__ import annotations

import numpy as np

from flroute.reference_vendor.support import NUMBERS, REALS, UNSIGNED, Array, Result, axes
from flroute.vendor import Unsupported, kernel

SORTED = (*REALS, "float16")
_POSITION = 0xFFFFFFFF


def _ordinal(x: Array) -> Array:
    """Signed integers in the order of ``x``, equal where its elements count as equal.

    The bits of a positive float are in its order; those of a negative one are in the reverse.
    """
    if (
        x.dtype.kind == "u" and x.itemsize >= 4
    ):  # so that the least is the least of the signed integers as wide
        flipped = np.bitwise_xor(x, x.dtype.type(1 << (8 * x.itemsize - 1)))
        return np.asarray(flipped).view(f"i{x.itemsize}")
    if x.dtype.kind != "f":
        return x.astype(np.int64)
    canonical = np.where(np.isnan(x), np.array(np.nan, x.dtype), x + x.dtype.type(0))  # -0 + 0 is 0
    bits = canonical.view(f"i{x.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _packed(x: Array, descending: bool) -> Array:
    """For elements of 32 bits or less: order above, position below, along the last dimension."""
    ordinal = _ordinal(x).astype(np.int64)
    if descending:
        np.invert(ordinal, out=ordinal)
    ordinal <<= 32
    ordinal |= np.arange(x.shape[-1])
    return ordinal


def stable_order(x: Array, descending: bool = False) -> Array:
    """The positions along the last dimension in the order of their elements; those of equal elements ascend."""
    if x.itemsize <= 4:
        packed = _packed(x, descending)
        packed.sort(axis=-1)
        return packed & _POSITION
    ordinal = _ordinal(x)
    if descending:
        ordinal = ~ordinal
    order = np.argsort(ordinal, axis=-1)
    ranked = np.take_along_axis(ordinal, order, axis=-1)
    differs = ranked[..., 1:] != ranked[..., :-1]
    if differs.all():
        return order
    order[..., 1:] |= (
        np.cumsum(differs, axis=-1) << 32
    )  # equal elements share a rank, and are sorted by position
    order.sort(axis=-1)
    return order & _POSITION


def _last(x: Array, dim: int) -> tuple[Array, int]:
    """``x`` with the dimension to sort along moved to the end, and which it was; a number is a row of one."""
    (axis,) = axes(dim, max(x.ndim, 1))
    return (x.reshape(1) if x.ndim == 0 else np.moveaxis(x, axis, -1)), axis


def _picked(x: Array, rows: Array, indices: Array, axis: int) -> tuple[Array, Array]:
    """Values at ``indices`` along the last dimension of ``rows``, and the indices, both as PyTorch returns them."""
    values = np.take_along_axis(rows, indices, axis=-1)
    if x.ndim == 0:
        shape = () if values.size else (0,)  # topk of none
        return values.reshape(shape), indices.reshape(shape)
    return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis)


@kernel("aten::sort.stable", dtypes=(*SORTED, *UNSIGNED))
def sort(x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Result, Result]:
    rows, axis = _last(x, dim)
    return _picked(x, rows, stable_order(rows, descending), axis)


@kernel("aten::topk", dtypes=NUMBERS)
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Result, Result]:
    """The first ``k`` in order; of equal elements the first ones, where PyTorch leaves the choice open."""
    rows, axis = _last(x, dim)
    if not 0 <= k <= rows.shape[-1]:
        raise Unsupported(f"the first {k} of {rows.shape[-1]} elements")
    if rows.itemsize <= 4 and 0 < k < rows.shape[-1]:
        packed = np.partition(_packed(rows, largest), k - 1, axis=-1)[..., :k]
        packed.sort(axis=-1)
        order = packed & _POSITION
    else:
        order = stable_order(rows, largest)[..., :k]
    return _picked(x, rows, order, axis)


# -- order statistics ---------------------------------------------------------------------------------


def _one_of_each(x: Array, rows: Array, index: Array, axis: int, keepdim: bool) -> tuple[Result, Result]:
    """The element at ``index`` of each row, as a reduction."""
    index = index[..., None]
    values, indices = np.take_along_axis(rows, index, axis=-1), index
    if x.ndim == 0:
        return values.reshape(()), indices.reshape(())
    if keepdim:
        return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis)
    return values[..., 0].copy(), indices[..., 0].copy()


def _rows_with_elements(x: Array, dim: int) -> tuple[Array, int]:
    rows, axis = _last(x, dim)
    if rows.shape[-1] == 0:
        raise Unsupported("no element to choose")
    return rows, axis


@kernel("aten::kthvalue", dtypes=NUMBERS)
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Result, Result]:
    """The ``k``-th smallest, counted from 1; of equal elements, in their order."""
    rows, axis = _rows_with_elements(x, dim)
    if not 1 <= k <= rows.shape[-1]:
        raise Unsupported(f"the {k}-th of {rows.shape[-1]} elements")
    return _one_of_each(x, rows, _kth(rows, k - 1), axis, keepdim)


def _kth(rows: Array, k: int) -> Array:
    """The position of the element that a stable sort would put at ``k``."""
    if rows.itemsize <= 4:
        return np.partition(_packed(rows, False), k, axis=-1)[..., k] & _POSITION
    return stable_order(rows)[..., k]


@kernel("aten::median.dim", dtypes=NUMBERS)
def median_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Result, Result]:
    """The lower of the two in the middle; the first NaN, if there is one."""
    rows, axis = _rows_with_elements(x, dim)
    index = _kth(rows, (rows.shape[-1] - 1) // 2)
    if x.dtype.kind == "f":
        missing = np.isnan(rows)
        index = np.where(missing.any(axis=-1), missing.argmax(axis=-1), index)
    return _one_of_each(x, rows, index, axis, keepdim)


@kernel("aten::nanmedian.dim", dtypes=NUMBERS)
def nanmedian_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Result, Result]:
    """The lower of the two in the middle of those that are not NaN, which come first in order."""
    if x.dtype.kind != "f":
        return median_dim(x, dim, keepdim)
    rows, axis = _rows_with_elements(x, dim)
    middle = np.maximum(np.count_nonzero(~np.isnan(rows), axis=-1) - 1, 0) // 2
    index = np.take_along_axis(stable_order(rows), np.asarray(middle)[..., None], axis=-1)[..., 0]
    return _one_of_each(x, rows, index, axis, keepdim)


@kernel("aten::median", dtypes=NUMBERS)
def median(x: Array) -> Result:
    if x.size == 0:
        raise Unsupported("the median of no elements")
    return median_dim(x.reshape(-1), 0)[0]


@kernel("aten::nanmedian", dtypes=NUMBERS)
def nanmedian(x: Array) -> Result:
    if x.size == 0:
        raise Unsupported("the median of no elements")
    return nanmedian_dim(x.reshape(-1), 0)[0]


@kernel("aten::mode", dtypes=SORTED)
def mode(x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Result, Result]:
    """The smallest of the most frequent values, and where it is last. In order, equal values are a run."""
    rows, axis = _rows_with_elements(x, dim)
    order = stable_order(rows)
    ranked = np.take_along_axis(rows, order, axis=-1)
    place = np.arange(rows.shape[-1])
    starts = np.ones(rows.shape, bool)
    np.not_equal(ranked[..., 1:], ranked[..., :-1], out=starts[..., 1:])
    run = place - np.maximum.accumulate(np.where(starts, place, 0), axis=-1)  # how far into its run each is
    index = np.take_along_axis(order, run.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return _one_of_each(x, rows, index, axis, keepdim)
