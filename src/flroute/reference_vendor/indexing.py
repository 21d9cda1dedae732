"""Picking and writing elements by index tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flroute.reference_vendor.casting import from_bfloat16, scalar, to_bfloat16
from flroute.reference_vendor.scatter import out_of_bounds, places, reduce_at
from flroute.reference_vendor.support import (
    COMPLEX,
    EVERY,
    MOVED,
    REALS,
    Array,
    Result,
    axes,
    check_indices,
    check_scalars,
    quiet,
)
from flroute.vendor import Unsupported, kernel

Key = tuple[Any, ...]

_MASKS = (np.dtype(np.bool_), np.dtype(np.uint8))
_OLDER_MASK = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."

# -- x[i, j, ...] -------------------------------------------------------------------------------------


def _key(x: Array, indices: Sequence[Array | None]) -> Key:
    """The indices as numpy takes them: a mask becomes the indices of its true elements, one array per dimension.

    Raises:
        IndexError: a mask has another shape than the dimensions it stands for.
    """
    key: list[Any] = []
    for position, index in enumerate(indices):
        if index is None:
            key.append(slice(None))
        elif index.dtype in _MASKS:
            covered = x.shape[len(key) : len(key) + index.ndim]
            if index.ndim == 0:
                raise Unsupported("a mask without dimensions")
            if index.dtype == np.uint8:
                warnings.warn(_OLDER_MASK, stacklevel=2)
            if index.shape != covered:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {position} does not match the shape of the indexed "
                    f"tensor {list(x.shape)} at index {len(key)}"
                )
            key.extend(index.nonzero())
        elif index.dtype.kind == "i" and index.itemsize >= 4:
            key.append(index)
        else:
            raise Unsupported(f"an index of {index.dtype}")
    if len(key) > x.ndim:
        raise Unsupported(f"{len(key)} indices for {x.ndim} dimensions")
    return tuple(key)


@contextmanager
def _in_the_hosts_words(x: Array, key: Key) -> Iterator[None]:
    """Say which index is out of bounds as PyTorch does; numpy calls a dimension an axis."""
    try:
        yield
    except IndexError:
        for dim, part in enumerate(key):
            if isinstance(part, np.ndarray):
                size = x.shape[dim]
                wrong = part[(part < -size) | (part >= size)]
                if wrong.size:
                    raise IndexError(out_of_bounds(dim, size).format(wrong.flat[0])) from None
        raise


@kernel("aten::index.Tensor", dtypes=MOVED, mixed=True)
def index(x: Array, indices: Sequence[Array | None]) -> Result:
    """numpy's own rule: where the indexed dimensions are not neighbours, those of the result come first."""
    key = _key(x, indices)
    arrays = [i for i in key if isinstance(i, np.ndarray)]
    if len(arrays) == 1:
        axis = next(i for i, part in enumerate(key) if isinstance(part, np.ndarray))
        with _in_the_hosts_words(x, key):
            return _taken(x, arrays[0], axis)
    with _in_the_hosts_words(x, key):
        picked = x[key]
    return picked if any(i.ndim for i in arrays) else picked.copy()  # by numbers alone it is a view


def _taken(x: Array, index: Array, axis: int) -> Result:
    """Faster than ``x[..., index]``, and the same but that numpy refuses to take nothing from nothing."""
    if x.shape[axis] == 0 and index.size == 0:
        return np.empty((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
    return np.take(x, index, axis=axis)


@kernel("aten::_index_put_impl_", dtypes=EVERY, mixed=True)
@quiet
def index_put_(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> None:
    key = _key(x, indices)
    if values.dtype != x.dtype:
        raise Unsupported(f"index_put of {values.dtype} into {x.dtype}")
    try:
        with _in_the_hosts_words(x, key):
            if accumulate:
                _add_at(x, key, values)
            else:
                x[key] = values
    except ValueError as error:  # a matter of types for numpy, of arguments for PyTorch; nothing was written
        raise RuntimeError(str(error)) from None


def _add_at(x: Array, key: Key, values: Array) -> None:
    """Add ``values`` one after another. numpy is fast at that over one dimension, so the places are numbered first."""
    places = np.arange(x.size).reshape(x.shape)[key]
    added = np.broadcast_to(values, np.shape(places)).reshape(-1)
    if x.dtype == np.uint16:
        total = from_bfloat16(x).reshape(-1)
        np.add.at(total, np.ravel(places), from_bfloat16(added))
        x[...] = to_bfloat16(total).reshape(x.shape)
        return
    flat = np.ascontiguousarray(x).reshape(-1)
    np.add.at(flat, np.ravel(places), added)
    if not np.may_share_memory(flat, x):
        x[...] = flat.reshape(x.shape)


@kernel("aten::index_put", dtypes=EVERY, mixed=True)
def index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Result:
    result = np.array(x, order="C")
    index_put_(result, indices, values, accumulate)
    return result


# -- one index along one dimension --------------------------------------------------------------------


@kernel("aten::index_select", dtypes=MOVED, mixed=True)
def index_select(x: Array, dim: int, index: Array) -> Result:
    if index.ndim > 1:
        raise Unsupported(f"index_select of shape {x.shape} with an index of shape {index.shape}")
    (axis,) = axes(dim, max(x.ndim, 1))
    flat = index.reshape(-1)
    if x.ndim == 0:
        check_indices(flat, 1, "index out of range in self")
        return x.copy()
    check_indices(flat, x.shape[axis], "index out of range in self")
    return _taken(x, flat, axis)


def along(x: Array, dim: int, index: Array, source: Array) -> tuple[Array, int, Array, Array]:
    """A copy of ``x``, the axis, and index and source in a form that fits; a tensor without dimensions counts as one of size 1.

    Raises:
        Unsupported: shapes that do not fit; PyTorch says so itself.
    """
    copy = np.array(x, order="C", ndmin=1)
    (axis,) = axes(dim, copy.ndim)
    index = index.reshape(-1)
    expected = (*copy.shape[:axis], index.size, *copy.shape[axis + 1 :])
    if source.ndim == 0:
        source = source.reshape(1)
    if source.shape != expected:
        raise Unsupported(f"a source of shape {source.shape} where {expected} fits")
    return copy, axis, index, source


@kernel("aten::index_add", dtypes=(*REALS, *COMPLEX), mixed=True)
@quiet
def index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Result:
    if source.dtype != x.dtype:
        raise Unsupported(f"a source of {source.dtype} for {x.dtype}")
    if alpha != 1:
        if x.dtype.kind != "c":
            check_scalars(x.dtype, alpha)
        source = source * x.dtype.type(alpha)
    if x.ndim != source.ndim:
        raise Unsupported(f"a source of shape {source.shape} for {x.shape}")
    copy, axis, index, source = along(x, dim, index, source)
    check_indices(index, copy.shape[axis], out_of_bounds(axis, copy.shape[axis]), RuntimeError)
    column = index.reshape(-1, *(1,) * (copy.ndim - 1 - axis))
    np.add.at(
        copy.reshape(-1), places(copy.shape, axis, column, source.shape).reshape(-1), source.reshape(-1)
    )
    return copy.reshape(x.shape)


@kernel("aten::index_reduce", dtypes=REALS, mixed=True)
@quiet
def index_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Result:
    if source.dtype != x.dtype:
        raise Unsupported(f"a source of {source.dtype} for {x.dtype}")
    copy, axis, index, source = along(x, dim, index, source)
    check_indices(index, copy.shape[axis], "index out of range in self")
    column = index.reshape(-1, *(1,) * (copy.ndim - 1 - axis))
    reduce_at(copy, places(copy.shape, axis, column, source.shape), source, reduce, include_self)
    return copy.reshape(x.shape)


@kernel("aten::index_copy", dtypes=EVERY, mixed=True)
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Result:
    if source.dtype != x.dtype:
        raise Unsupported(f"a source of {source.dtype} for {x.dtype}")
    copy, axis, index, source = along(x, dim, index, source)
    check_indices(index, copy.shape[axis], "index_copy_(): " + out_of_bounds(axis, copy.shape[axis]))
    copy[(slice(None),) * axis + (index,)] = source
    return copy.reshape(x.shape)


@kernel("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", dtypes=EVERY, mixed=True)
@quiet
def index_fill(x: Array, dim: int, index: Array, value: Any) -> Result:
    """A negative index counts from the end here."""
    copy = np.array(x, order="C", ndmin=1)
    (axis,) = axes(dim, copy.ndim)
    copy[(slice(None),) * axis + (index.reshape(-1),)] = scalar(value, x.dtype)
    return copy.reshape(x.shape)


# -- indices into the flattened tensor ----------------------------------------------------------------


def _check_flat(index: Array, size: int) -> None:
    if index.size and (index.min() < -size or index.max() >= size):
        worst = index.min() if index.min() < -size else index.max()
        raise IndexError(f"out of range: tried to access index {worst} on a tensor of {size} elements.")


@kernel("aten::take", dtypes=EVERY, mixed=True)
def take(x: Array, index: Array) -> Result:
    """A negative index counts from the end."""
    _check_flat(index, x.size)
    return _taken(x.reshape(-1), index, 0)


@kernel("aten::put", dtypes=EVERY, mixed=True)
@quiet
def put(x: Array, index: Array, source: Array, accumulate: bool = False) -> Result:
    if source.dtype != x.dtype or source.size != index.size:
        raise Unsupported(f"{source.size} values of {source.dtype} for {index.size} places of {x.dtype}")
    _check_flat(index, x.size)
    copy = np.array(x, order="C")
    flat = copy.reshape(-1)
    if accumulate:
        _add_at(flat, (index.reshape(-1),), source.reshape(-1))
    else:
        flat[index.reshape(-1)] = source.reshape(-1)
    return copy
