"""Gather and scatter: an index for every element, along one dimension."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flroute.reference_vendor.casting import scalar
from flroute.reference_vendor.support import COMPLEX, EVERY, REALS, Array, Result, axes, check_indices, quiet
from flroute.vendor import Unsupported, kernel


def places(shape: tuple[int, ...], axis: int, index: Array, sizes: tuple[int, ...]) -> Array:
    """Where in a row-major array of ``shape`` the elements lie that ``index`` names along ``axis``.

    Along the other dimensions they are the first ones, as many as ``sizes`` says.
    """
    numbers = index.astype(np.int64) * math.prod(shape[axis + 1 :])
    for dim, size in enumerate(sizes):
        if dim != axis:
            steps = np.arange(size) * math.prod(shape[dim + 1 :])
            numbers = numbers + steps.reshape(-1, *(1,) * (len(shape) - 1 - dim))
    return numbers


def out_of_bounds(axis: int, size: int) -> str:
    """The host's words for an index that is out of range, to be formatted with the index."""
    return f"index {{}} is out of bounds for dimension {axis} with size {size}"


def _checked(x: Array, dim: int, index: Array) -> int:
    """The axis, once the index is known to fit ``x``.

    Raises:
        RuntimeError: an index out of range, a negative one among them, as the host says it.
        Unsupported: shapes that do not fit; PyTorch says so itself.
    """
    (axis,) = axes(dim, x.ndim)
    if index.ndim != x.ndim:
        raise Unsupported(f"an index of shape {index.shape} for shape {x.shape}")
    if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis):
        raise Unsupported(f"an index of shape {index.shape} for shape {x.shape}")
    check_indices(index, x.shape[axis], out_of_bounds(dim, x.shape[axis]), RuntimeError)
    return axis


def _one_dimension(x: Array) -> Array:
    """A tensor without dimensions counts as one of size 1."""
    return x.reshape(1) if x.ndim == 0 else x


@kernel("aten::gather", dtypes=EVERY, mixed=True)
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Result:
    shape = index.shape
    if index.size == 0:
        return np.empty(shape, x.dtype)
    x, index = _one_dimension(x), _one_dimension(index)
    axis = _checked(x, dim, index)
    window = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
    return np.take_along_axis(x[window], index, axis=axis).reshape(shape)


def _target(x: Array, dim: int, index: Array) -> tuple[Array, Array]:
    """A copy of ``x`` to write to, and the places ``index`` names in it."""
    copy = np.array(x, order="C", ndmin=1)
    if index.size == 0:
        return copy, np.empty(index.shape, np.int64)
    index = _one_dimension(index)
    axis = _checked(copy, dim, index)
    return copy, places(copy.shape, axis, index, index.shape)


def _source(source: Array, x: Array, where: Array) -> Array:
    """The part of ``source`` that has an index."""
    if source.dtype != x.dtype:
        raise Unsupported(f"a source of {source.dtype} for {x.dtype}")
    if where.size == 0:
        return np.empty(where.shape, x.dtype)
    source = _one_dimension(source)
    if source.ndim != where.ndim or any(n > m for n, m in zip(where.shape, source.shape, strict=True)):
        raise Unsupported(f"a source of shape {source.shape} for an index of shape {where.shape}")
    return source[tuple(map(slice, where.shape))]


@kernel("aten::scatter.src", dtypes=EVERY, mixed=True)
def scatter(x: Array, dim: int, index: Array, src: Array) -> Result:
    copy, where = _target(x, dim, index)
    copy.reshape(-1)[where] = _source(src, x, where)
    return copy.reshape(x.shape)


@kernel("aten::scatter.value", dtypes=EVERY, mixed=True)
@quiet
def scatter_value(x: Array, dim: int, index: Array, value: Any) -> Result:
    copy, where = _target(x, dim, index)
    copy.reshape(-1)[where] = scalar(value, x.dtype)
    return copy.reshape(x.shape)


@kernel("aten::scatter_add", dtypes=(*REALS, *COMPLEX), mixed=True)
@quiet
def scatter_add(x: Array, dim: int, index: Array, src: Array) -> Result:
    """One after another, in the order of the host, so that sums round alike."""
    copy, where = _target(x, dim, index)
    np.add.at(copy.reshape(-1), where.reshape(-1), _source(src, x, where).reshape(-1))
    return copy.reshape(x.shape)


# -- reductions into places ---------------------------------------------------------------------------

_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "add": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "multiply": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


def _neutral(reduce: str, dtype: np.dtype[Any]) -> Any:
    """What changes nothing when it takes part."""
    if reduce in ("amax", "amin"):
        if dtype.kind == "f":
            return -np.inf if reduce == "amax" else np.inf
        if dtype.kind == "b":
            return reduce == "amin"
        limits = np.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return 1 if reduce in ("prod", "multiply") else 0


def reduce_at(target: Array, where: Array, source: Array, reduce: str, include_self: bool) -> None:
    """Reduce ``source`` into the places of the row-major ``target``, with what is there or without it.

    Raises:
        Unsupported: a reduction by another name, or a mean of truth values.
    """
    if reduce not in _REDUCTIONS or (reduce == "mean" and target.dtype == bool):
        raise Unsupported(f"the reduction {reduce!r} of {target.dtype}")
    flat, where = target.reshape(-1), where.reshape(-1)
    if not include_self:
        flat[where] = _neutral(reduce, target.dtype)
    _REDUCTIONS[reduce].at(flat, where, source.reshape(-1))
    if reduce == "mean":
        counts = np.maximum(np.bincount(where, minlength=flat.size) + include_self, 1)
        divide = np.true_divide if flat.dtype.kind in "fc" else np.floor_divide
        flat[...] = divide(flat, counts.astype(flat.dtype))


@kernel("aten::scatter_reduce.two", dtypes=REALS, mixed=True)
@quiet
def scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Result:
    copy, where = _target(x, dim, index)
    reduce_at(copy, where, _source(src, x, where), reduce, include_self)
    return copy.reshape(x.shape)


@kernel("aten::scatter.reduce", dtypes=(*REALS, *COMPLEX), mixed=True)
@quiet
def scatter_reduce_in_words(x: Array, dim: int, index: Array, src: Array, *, reduce: str) -> Result:
    """The older form: ``add`` or ``multiply``."""
    copy, where = _target(x, dim, index)
    reduce_at(copy, where, _source(src, x, where), reduce, True)
    return copy.reshape(x.shape)


@kernel("aten::scatter.value_reduce", dtypes=(*REALS, *COMPLEX), mixed=True)
@quiet
def scatter_reduce_value(x: Array, dim: int, index: Array, value: Any, *, reduce: str) -> Result:
    copy, where = _target(x, dim, index)
    reduce_at(copy, where, np.broadcast_to(scalar(value, x.dtype), where.shape), reduce, True)
    return copy.reshape(x.shape)
