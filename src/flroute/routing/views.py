"""The view route: metadata ops never touch data, so PyTorch's own host implementation serves ``fl``, aliases and all.

Some host implementations compute sizes and strides and then dispatch ``as_strided``, which for ``fl`` comes back into
Python. For the commonest, sizes and strides are computed here, and ``as_strided`` is the only call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flroute.device.table import device_at
from flroute.device.tensors import empty_strided, point_at, refuse_quantized
from flroute.torch_compat import HOST_KEYS, boxed_redispatch

Geometry = tuple[Any, Any, int]
"""Sizes, strides and storage offset of a view, in elements."""

_as_strided = boxed_redispatch(torch.ops.aten.as_strided.default)


def view_call(op: Any) -> Callable[..., Any]:
    """How ``op`` is called to get a view of a device tensor: takes the op's arguments."""
    if op is torch.ops.aten.set_.default:
        return _set_to_nothing
    redispatch = boxed_redispatch(op)
    if op is torch.ops.aten.view.dtype:
        return _view_as_dtype
    geometry = _GEOMETRIES.get(op.name())
    if geometry is None:
        return lambda *args, **kwargs: redispatch(HOST_KEYS, *args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = None if kwargs else geometry(*args)
        if found is None:  # unusual, or an error that PyTorch is to report
            return redispatch(HOST_KEYS, *args, **kwargs)
        return _as_strided(HOST_KEYS, args[0], *found)

    return call


def _view_as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    refuse_quantized(dtype)  # the host makes one without a quantizer
    return boxed_redispatch(torch.ops.aten.view.dtype)(HOST_KEYS, tensor, dtype)  # type: ignore[no-any-return]


def _set_to_nothing(tensor: torch.Tensor) -> torch.Tensor:
    """``set_()``: the host's own would take a host storage."""
    point_at(tensor, empty_strided(device_at(tensor.device.index), (0,), None, tensor.dtype))
    return tensor


def _t(tensor: torch.Tensor) -> Geometry | None:
    sizes, strides = tensor.shape, tensor.stride()
    if len(sizes) != 2:
        return None
    return (sizes[1], sizes[0]), (strides[1], strides[0]), int(tensor.storage_offset())


def _transpose(tensor: torch.Tensor, dim0: int, dim1: int) -> Geometry | None:
    ndim = tensor.dim()
    if not (-ndim <= dim0 < ndim and -ndim <= dim1 < ndim):
        return None
    sizes, strides = list(tensor.shape), list(tensor.stride())
    sizes[dim0], sizes[dim1] = sizes[dim1], sizes[dim0]
    strides[dim0], strides[dim1] = strides[dim1], strides[dim0]
    return sizes, strides, int(tensor.storage_offset())


def _permute(tensor: torch.Tensor, dims: list[int]) -> Geometry | None:
    ndim = tensor.dim()
    order = [dim + ndim if dim < 0 else dim for dim in dims]
    if sorted(order) != list(range(ndim)):
        return None
    sizes, strides = tensor.shape, tensor.stride()
    return [sizes[dim] for dim in order], [strides[dim] for dim in order], int(tensor.storage_offset())


def _slice(
    tensor: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Geometry | None:
    ndim = tensor.dim()
    if not -ndim <= dim < ndim or step.__class__ is not int or step < 1:
        return None
    sizes, strides = list(tensor.shape), list(tensor.stride())
    start, end, _ = slice(start, end).indices(sizes[dim])
    offset = int(tensor.storage_offset()) + start * strides[dim]
    sizes[dim] = max(0, -(-(end - start) // step))
    strides[dim] *= step
    return sizes, strides, offset


def _select(tensor: torch.Tensor, dim: int, index: int) -> Geometry | None:
    ndim = tensor.dim()
    if not -ndim <= dim < ndim or index.__class__ is not int:
        return None
    sizes, strides = list(tensor.shape), list(tensor.stride())
    size, stride = sizes.pop(dim), strides.pop(dim)
    if not -size <= index < size:
        return None
    return sizes, strides, int(tensor.storage_offset()) + (index + size if index < 0 else index) * stride


def _unsqueeze(tensor: torch.Tensor, dim: int) -> Geometry | None:
    ndim = tensor.dim()
    if not -ndim - 1 <= dim <= ndim:
        return None
    dim = dim + ndim + 1 if dim < 0 else dim
    sizes, strides = list(tensor.shape), list(tensor.stride())
    strides.insert(dim, sizes[dim] * strides[dim] if dim < ndim else 1)
    sizes.insert(dim, 1)
    return sizes, strides, int(tensor.storage_offset())


_GEOMETRIES: dict[str, Callable[..., Geometry | None]] = {
    "aten::t": _t,
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::unsqueeze": _unsqueeze,
}
