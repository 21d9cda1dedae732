"""Picking and writing elements by masks, and finding those that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.casting import scalar
from flroute.reference_vendor.support import EVERY, Array, Result, quiet, select
from flroute.vendor import Unsupported, kernel

_UNSIGNED = {np.dtype(np.uint16): 0x7FFF, np.dtype(np.uint32): 0x7FFF_7FFF}
"""All bits but the signs, of a bfloat16 and of the two halves of a complex32: both have a negative zero."""


def _together(x: Array, mask: Array) -> tuple[Array, Array]:
    """``x`` and ``mask`` in their common shape; neither is to be written to."""
    if mask.dtype != bool:
        raise Unsupported(f"a mask of {mask.dtype}")
    if mask.shape == x.shape:
        return x, mask
    try:
        shape = np.broadcast_shapes(x.shape, mask.shape)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    return np.broadcast_to(x, shape), np.broadcast_to(mask, shape)


@kernel("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", dtypes=EVERY, mixed=True)
@quiet
def masked_fill(x: Array, mask: Array, value: Any) -> Result:
    if mask.dtype != bool:
        raise Unsupported(f"a mask of {mask.dtype}")
    if isinstance(value, np.ndarray) and not np.can_cast(value.dtype, x.dtype, "same_kind"):
        raise Unsupported(f"a value of {value.dtype} for {x.dtype}")
    fill = np.asarray(scalar(value, x.dtype))
    if x.itemsize <= 8:
        return select(mask, fill, x)
    x, mask = _together(x, mask)
    result = x.copy()
    np.copyto(result, fill, where=mask)
    return result


@kernel("aten::masked_select", dtypes=(*EVERY, "complex32"), mixed=True)
def masked_select(x: Array, mask: Array) -> Result:
    x, mask = _together(x, mask)
    return x[mask].copy() if x.ndim == 0 else x[mask]


@kernel("aten::masked_scatter", dtypes=EVERY, mixed=True)
def masked_scatter(x: Array, mask: Array, source: Array) -> Result:
    """The elements of ``source``, in order, go where the mask is true."""
    if source.dtype != x.dtype:
        raise Unsupported(f"a source of {source.dtype} for {x.dtype}")
    x, mask = _together(x, mask)
    count = np.count_nonzero(mask)
    if source.size < count:
        raise RuntimeError(
            f"masked_scatter: the source has {source.size} elements, fewer than the {count} that the mask asks for"
        )
    result = np.array(x, order="C")
    result[mask] = source.reshape(-1)[:count]
    return result


@kernel("aten::nonzero", dtypes=(*EVERY, "complex32"))
def nonzero(x: Array) -> Result:
    """One row of indices per element that is not zero, laid out by columns; of a number, a row without entries."""
    if x.dtype in _UNSIGNED:
        x = x & _UNSIGNED[x.dtype]
    count = int(np.count_nonzero(x))
    columns = np.stack(x.nonzero()) if x.ndim else np.empty((0, count), np.int64)
    return np.ndarray((count, x.ndim), np.int64, columns, strides=(8, 8 * count))


@kernel("aten::nonzero_static", dtypes=(*EVERY, "complex32"))
def nonzero_static(x: Array, *, size: int, fill_value: int = -1) -> Result:
    """The first ``size`` rows of ``nonzero``; if there are fewer, rows of ``fill_value`` follow."""
    if size < 0:
        raise Unsupported(f"{size} rows")
    found = nonzero(x)[:size]
    result = np.full((size, x.ndim), fill_value, np.int64)
    result[: len(found)] = found
    return result
