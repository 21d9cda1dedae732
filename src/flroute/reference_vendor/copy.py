"""Copies, fills, and ops that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import (
    COMPLEX,
    NUMPY_TYPES,
    REAL_TYPES,
    REALS,
    Array,
    Result,
    axes,
    check_indices,
    check_scalars,
    quiet,
    select,
)
from flroute.vendor import Unsupported, kernel

# -- writing in place ---------------------------------------------------------------------------------


def _real(source: Array, target: Array) -> Result:
    """The real part where ``target`` holds no complex numbers; bool asks for both parts."""
    if source.dtype.kind == "c" and target.dtype.kind not in "cb":
        return source.real
    return source


def _numpy_knows(target: torch.Tensor, source: Any, non_blocking: bool = False) -> bool | str:
    for tensor in (target, source):
        if isinstance(tensor, torch.Tensor) and tensor.dtype not in NUMPY_TYPES:
            return f"numpy has no {tensor.dtype}"
    return True


@kernel("aten::copy_", when=_numpy_knows)
@quiet
def copy_(target: Array, source: Array, non_blocking: bool = False) -> None:
    np.copyto(target, _real(source, target), casting="unsafe")


@kernel("aten::fill_.Scalar", when=_numpy_knows)
@quiet
def fill_scalar_(target: Array, value: Any) -> None:
    if target.dtype.kind == "b" and isinstance(value, float | int):
        value = bool(value)  # torch.ones makes a bool tensor with 1.0
    if target.dtype.kind != "c":
        check_scalars(target.dtype, value)
    target[...] = value


@kernel("aten::fill_.Tensor", when=_numpy_knows)
@quiet
def fill_tensor_(target: Array, value: Array) -> None:
    if value.ndim:
        raise Unsupported(f"fill_ with a value of {value.ndim} dimensions")
    np.copyto(target, _real(value, target), casting="unsafe")


@kernel("aten::zero_")  # zero is all zero bits in every dtype
def zero_(target: Array) -> None:
    target.fill(0)


# -- joining and cutting ------------------------------------------------------------------------------


@kernel("aten::cat", dtypes=(*REALS, *COMPLEX))
def cat(arrays: Sequence[Array], dim: int = 0) -> Result:
    # A tensor of shape (0,) joins anything, for PyTorch's own history.
    joined = [array for array in arrays if array.shape != (0,)] or list(arrays)
    if not joined or joined[0].ndim == 0:
        raise Unsupported("cat of no tensors, or of 0-dim ones")
    (axis,) = axes(dim, joined[0].ndim)
    size = [*joined[0].shape[:axis], *joined[0].shape[axis + 1 :]]
    if any([*array.shape[:axis], *array.shape[axis + 1 :]] != size for array in joined):
        raise Unsupported(f"cat of shapes {[array.shape for array in joined]}")
    return np.concatenate(joined, axis=axis)


@kernel("aten::tril", dtypes=(*REALS, *COMPLEX))
def tril(x: Array, diagonal: int = 0) -> Result:
    if x.ndim < 2:
        raise Unsupported(f"tril of shape {x.shape}")
    return np.tril(x, diagonal)


@kernel("aten::triu", dtypes=(*REALS, *COMPLEX))
def triu(x: Array, diagonal: int = 0) -> Result:
    if x.ndim < 2:
        raise Unsupported(f"triu of shape {x.shape}")
    return np.triu(x, diagonal)


@kernel("aten::flip", dtypes=(*REALS, *COMPLEX))
def flip(x: Array, dims: Sequence[int]) -> Result:
    return np.flip(x, axes(dims, x.ndim)).copy() if dims else x.copy()


@kernel("aten::constant_pad_nd", dtypes=REALS)
def constant_pad(x: Array, pad: Sequence[int], value: float = 0) -> Result:
    """Pairs in ``pad`` run from the last dimension backwards; a negative one cuts."""
    check_scalars(x.dtype, value or x.dtype.type(0).item())
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise Unsupported(f"padding {list(pad)} for {x.ndim} dimensions")
    source, target, shape = [slice(None)] * x.ndim, [slice(None)] * x.ndim, list(x.shape)
    for i in range(len(pad) // 2):
        axis, (before, after) = x.ndim - 1 - i, pad[2 * i : 2 * i + 2]
        shape[axis] += before + after
        if shape[axis] < 0:
            raise Unsupported(f"padding {list(pad)} for shape {x.shape}")
        kept = max(x.shape[axis] + min(before, 0) + min(after, 0), 0)
        source[axis] = slice(max(-before, 0), max(-before, 0) + kept)
        target[axis] = slice(max(before, 0), max(before, 0) + kept)
    result = np.full(shape, value, x.dtype)
    result[tuple(target)] = x[tuple(source)]
    return result


# -- picking by index or mask -------------------------------------------------------------------------


def _long_index(x: torch.Tensor, dim: int, index: torch.Tensor, **_: Any) -> bool | str:
    if index.dtype is not torch.int64:
        return "the index is not int64"
    return x.dtype in REAL_TYPES


@kernel("aten::index_select", when=_long_index)
def index_select(x: Array, dim: int, index: Array) -> Result:
    if x.ndim == 0 or index.ndim > 1:
        raise Unsupported(f"index_select of shape {x.shape} with an index of shape {index.shape}")
    (axis,) = axes(dim, x.ndim)
    check_indices(index, x.shape[axis], "index out of range in self")
    return np.take(x, index.reshape(-1), axis=axis)


@kernel("aten::gather", when=_long_index)
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Result:
    if x.ndim == 0 or index.ndim != x.ndim:
        raise Unsupported(f"gather from shape {x.shape} with an index of shape {index.shape}")
    (axis,) = axes(dim, x.ndim)
    if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis):
        raise Unsupported(f"gather from shape {x.shape} with an index of shape {index.shape}")
    if index.size and (index.min() < 0 or index.max() >= x.shape[axis]):
        raise Unsupported("an index out of range")
    window = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
    return np.take_along_axis(x[window], index, axis=axis)


def _masked(x: torch.Tensor, mask: torch.Tensor, value: Any) -> bool | str:
    if mask.dtype is not torch.bool:
        return "the mask is not bool"
    if x.dtype not in REAL_TYPES:
        return f"numpy kernels do not move {x.dtype}"
    if isinstance(value, torch.Tensor) and value.dtype is not x.dtype:
        return "the value has another dtype"
    return True


@kernel("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", when=_masked)
def masked_fill(x: Array, mask: Array, value: Any) -> Result:
    check_scalars(x.dtype, value)
    return select(mask, np.asarray(value, x.dtype), x)
