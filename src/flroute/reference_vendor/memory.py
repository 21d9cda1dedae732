"""The vendor's memory: the host's own, from a pool for each device, which large results come from too."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from flroute.vendor import HostMemory, out_of_memory

Array: TypeAlias = npt.NDArray[Any]

TOTAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MEMORY = HostMemory(limit=TOTAL)
LARGE = HostMemory.pooled_from
"""Bytes from which on a result is worth a block of the pool, whose pages the process has already."""


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """A new array for a result, uninitialised and row-major, for ``out=``.

    Raises:
        torch.OutOfMemoryError: there is no room for it.
    """
    try:
        return MEMORY.empty(shape, dtype)
    except MemoryError as error:
        raise out_of_memory(error, math.prod(shape) * dtype.itemsize) from error


def empty_like(x: Array, shape: Sequence[int] | None = None) -> Array:
    """A new array of the dtype of ``x``, of its shape and order of dimensions unless another ``shape`` is given."""
    if x.nbytes < LARGE or not x.flags.c_contiguous:
        return np.empty_like(x) if shape is None else np.empty_like(x, shape=shape)
    return empty(x.shape if shape is None else shape, x.dtype)


def room_for(x: Array, *others: Any) -> Array | None:
    """Memory for the result of a ufunc of a large ``x`` and others in the dtype of ``x``; ``None`` lets numpy find it.

    numpy keeps the order of dimensions that its operands have; only of row-major ones is it clear here.
    """
    if not x.flags.c_contiguous:
        return None
    shape = x.shape
    for y in others:
        if y.__class__ is np.ndarray:
            if y.dtype != x.dtype or not y.flags.c_contiguous:
                return None
            if y.shape != shape:
                shape = np.broadcast_shapes(shape, y.shape)
        elif y.__class__ not in (float, int):
            return None
    return empty(shape, x.dtype)
