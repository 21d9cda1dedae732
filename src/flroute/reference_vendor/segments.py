"""Reductions over consecutive stretches of a dimension, given by their lengths or by where they start and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flroute.reference_vendor.support import FLOATS, Array, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel

_DTYPES = (*FLOATS, "int32", "int64")
_REDUCTIONS: dict[str, tuple[np.ufunc, float]] = {
    "sum": (np.add, 0),
    "mean": (np.add, 0),
    "prod": (np.multiply, 1),
    "max": (np.maximum, -np.inf),
    "min": (np.minimum, np.inf),
}
"""How elements are combined, and what an empty segment starts from."""


@dataclass(frozen=True)
class _Segments:
    """Every segment of every row of the leading dimensions, in data of shape (rows, elements of one row).

    Attributes:
        shape: of the result.
        starts: the row each segment starts at.
        lengths: how many rows it has.
    """

    shape: tuple[int, ...]
    starts: Array
    lengths: Array

    def reduce(self, ufunc: np.ufunc, data: Array, start: float) -> Array:
        """A row for each segment, in double precision."""
        result = np.full((self.starts.size, data.shape[1]), start, np.float64)
        filled = np.flatnonzero(self.lengths)
        if filled.size and data.shape[1]:
            bounds = np.stack([self.starts, self.starts + self.lengths], axis=1)[filled].reshape(-1)
            closed = np.concatenate([wide(data), np.zeros((1, data.shape[1]))])  # the end of the last segment
            result[filled] = ufunc(start, ufunc.reduceat(closed, bounds, axis=0)[::2])
        return result

    def members(self) -> tuple[Array, Array]:
        """The rows that are in a segment, and in which."""
        segment = np.repeat(np.arange(self.starts.size), self.lengths)
        before = np.cumsum(self.lengths) - self.lengths
        return np.arange(segment.size) + (self.starts - before)[segment], segment


def _segments(
    data: Array, reduce: str, lengths: Array | None, offsets: Array | None, axis: int, unsafe: bool
) -> tuple[_Segments, Array]:
    """The segments, and the data as rows.

    Raises:
        Unsupported: what PyTorch refuses, in its own words.
    """
    given = lengths if offsets is None else offsets
    if reduce not in _REDUCTIONS or data.dtype.kind != "f" or given is None or given.dtype.kind != "i":
        raise Unsupported(f"a reduction {reduce!r} of segments of {data.dtype}")
    axis = axis + data.ndim if axis < 0 else axis
    if axis != given.ndim - 1 or given.shape[:-1] != data.shape[:axis]:
        raise Unsupported(f"segments of shape {given.shape} along dimension {axis} of shape {data.shape}")
    if offsets is None:
        ends = np.cumsum(given, axis=-1)
        starts, counts = ends - given, given
    else:
        starts, ends = given[..., :-1], given[..., 1:]
        counts = ends - starts
    size = data.shape[axis]
    if counts.size and (counts.min() < 0 or starts.min() < 0 or ends.max() > size):
        raise Unsupported(f"segments that reach beyond the {size} elements of dimension {axis}")
    if offsets is None and not unsafe and np.any(given.sum(axis=-1) != size):
        raise Unsupported(f"lengths that do not add up to the {size} elements of dimension {axis}")
    shape = (*data.shape[:axis], counts.shape[-1], *data.shape[axis + 1 :])
    row = np.arange(counts[..., :1].size).reshape(counts[..., :1].shape) * size
    rows = data.reshape(-1, int(np.prod(data.shape[axis + 1 :])))
    return _Segments(shape, (starts + row).reshape(-1), counts.reshape(-1)), rows


@kernel("aten::segment_reduce", dtypes=_DTYPES, mixed=True)
@quiet
def segment_reduce(
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """An ``initial`` takes part in every segment; the mean of an empty one is NaN without it."""
    if indices is not None:
        raise Unsupported("segments given by indices")
    segments, rows = _segments(data, reduce, lengths, offsets, axis, unsafe)
    ufunc, start = _REDUCTIONS[reduce]
    result = segments.reduce(ufunc, rows, start if initial is None else float(initial))
    if reduce == "mean":
        count = segments.lengths[:, None]
        result = np.where((count == 0) & (initial is not None), result, result / count)
    return narrow(result.reshape(segments.shape), data)


@kernel("aten::_segment_reduce_backward", dtypes=_DTYPES, mixed=True)
@quiet
def segment_reduce_backward(
    grad: Array,
    output: Array,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Any:
    segments, rows = _segments(data, reduce, lengths, offsets, axis, unsafe=True)
    if grad.shape != segments.shape or output.shape != segments.shape:
        raise Unsupported(f"a gradient of shape {grad.shape} for {segments.shape}")
    member, segment = segments.members()
    flat = wide(rows)
    slope, made = (wide(array).reshape(-1, flat.shape[1]) for array in (grad, output))
    result = np.zeros(flat.shape)
    if reduce in ("max", "min"):  # those that are the extreme share the gradient
        chosen = (flat[member] == made[segment]) | np.isnan(flat[member])
        marks = np.zeros(flat.shape)
        marks[member] = chosen
        count = segments.reduce(np.add, marks, 0)
        result[member] = np.where(chosen, (slope / count)[segment], 0)
    elif reduce == "prod":
        others = _products_of_others(segments, flat, made, 1.0 if initial is None else float(initial))
        result[member] = slope[segment] * others
    elif reduce == "mean":
        result[member] = (slope / segments.lengths[:, None])[segment]
    else:
        result[member] = slope[segment]
    return narrow(result.reshape(data.shape), data)


def _products_of_others(segments: _Segments, flat: Array, product: Array, initial: float) -> Array:
    """For each member its segment's product without it: a quotient, except where it is 0 or NaN itself."""
    member, segment = segments.members()
    x = flat[member]
    others = product[segment] / x
    for odd, alone in ((flat == 0, 0.0), (np.isnan(flat), np.nan)):
        rest = segments.reduce(np.multiply, np.where(odd, 1, flat), initial)
        several = segments.reduce(np.add, odd.astype(float), 0) > 1
        without = np.where(several, rest * alone, rest)
        others = np.where(odd[member], without[segment], others)
    return others
