"""Long arrays, a block at a time.

A formula of many passes over whole arrays would fetch everything from memory again in each pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from flroute.reference_vendor.memory import Array, empty, empty_like

BLOCK = 1 << 16
"""Elements: few enough that a buffer or two of float32 stay in a core's own cache from one pass to the next."""


def in_blocks(function: Callable[..., None], *operands: Array) -> Array:
    """``function(out, *operands)`` on flat pieces of operands of one dtype; gives the whole of ``out``.

    For formulas of many passes: over whole arrays each pass would fetch everything from memory again.
    """
    if any(operand.shape != operands[0].shape for operand in operands):
        operands = np.broadcast_arrays(*operands)
    out = empty_like(operands[0])
    if out.size <= BLOCK and out.ndim:
        function(out, *operands)
        return out
    if any(operand.strides != out.strides for operand in operands):
        out = np.empty(out.shape, out.dtype)
        operands = tuple(np.ascontiguousarray(operand) for operand in operands)
    flat = [array.ravel(order="K") for array in (out, *operands)]  # views: all are dense, in one order
    for start in range(0, out.size, BLOCK):
        function(*[piece[start : start + BLOCK] for piece in flat])
    return out


def pieces(*arrays: Array) -> Iterable[tuple[Array, ...]]:
    """The arrays, or flat views of pieces of them if all are row-major and of one shape."""
    first = arrays[0]
    if first.size <= BLOCK or not all(a.shape == first.shape and a.flags.c_contiguous for a in arrays):
        return (arrays,)
    return _flat_pieces(arrays)


def _flat_pieces(arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, arrays[0].size, BLOCK):
        yield tuple([array[start : start + BLOCK] for array in flat])


def row_blocks(rows: Array) -> Iterator[slice]:
    """As many rows of a matrix at a time as stay in a core's own cache."""
    step = max(1, BLOCK // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        yield slice(start, start + step)


def in_rows(function: Callable[..., None], *operands: Array) -> Array:
    """``function(out, *operands)`` on some rows after the other, (rows, width); gives the whole of ``out``, row-major.

    The operands have one shape and dtype. Like ``in_blocks``, where what a row gives depends on all of it.
    """
    out = empty(operands[0].shape, operands[0].dtype)
    if 0 < out.size <= BLOCK and out.ndim == 2 and all(array.flags.c_contiguous for array in operands):
        function(out, *operands)
    elif out.size:
        matrices = [array.reshape(-1, out.shape[-1]) for array in (out, *operands)]
        for some in row_blocks(matrices[0]):
            function(*[matrix[some] for matrix in matrices])
    return out


@functools.cache
def _filled(value: float, dtype: str) -> Array:
    result = np.full(BLOCK, value, dtype)
    result.flags.writeable = False
    return result


def filled(value: float, like: Array) -> Array:
    """``value`` in the shape and dtype of ``like``, a block or less; not to be written to.

    numpy has fast loops for two arrays, but not for an array and a number, in ``maximum`` and its kind.
    """
    return _filled(value, like.dtype.char)[: like.size].reshape(like.shape)


_STRIP = 8
"""Elements in a row that are written at a time where rows are read across: more would not stay in the nearest cache."""


def copy_into(target: Array, source: Array) -> None:
    """``target[...] = source``, in strips where one is laid out across the other."""
    across = source.ndim == target.ndim > 1 and source.shape == target.shape and target.size >= BLOCK
    if across and source.strides[-1] != source.itemsize and source.itemsize in source.strides:
        for start in range(0, source.shape[-1], _STRIP):
            strip = (..., slice(start, start + _STRIP))
            np.copyto(target[strip], source[strip], casting="unsafe")
    else:
        np.copyto(target, source, casting="unsafe")


def row_major(x: Array) -> Array:
    """A row-major copy of ``x``."""
    out = empty(x.shape, x.dtype)
    copy_into(out, x)
    return out
