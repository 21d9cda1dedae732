"""Sparse tensors on the device: their parts are strided device tensors, and PyTorch's host computes with the whole.

Making one, taking it apart and asking what it is are metadata: PyTorch's own host implementation serves every device. What computes
falls back to the host, and is recorded as any fallback is; PyTorch's composites are split as on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from flroute.device import torch_fl
from flroute.device.table import DEVICE_TYPE, Device
from flroute.routing.schema import OpFacts, tensors_in
from flroute.torch_compat import DispatchKey, DispatchKeySet, boxed_redispatch, has_kernel

aten = torch.ops.aten
_STRIDED = torch.strided
_COO_KEYS, _COMPRESSED_KEYS = DispatchKeySet(DispatchKey.SparseCPU), DispatchKeySet(DispatchKey.SparseCsrCPU)
_ROWS_ARE_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_bsr})

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
"""All that a device tensor can have beside the strided one."""

METADATA = frozenset(
    {
        "aten::_coalesced_", "aten::_dimI", "aten::_dimV", "aten::_indices", "aten::_nnz", "aten::_values",
        "aten::_sparse_coo_tensor_with_dims", "aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::ccol_indices",
        "aten::col_indices", "aten::copy_sparse_to_sparse_", "aten::crow_indices", "aten::dense_dim", "aten::empty.memory_format",
        "aten::indices", "aten::is_coalesced", "aten::row_indices", "aten::sparse_dim", "aten::values",
    }
)  # fmt: skip
"""Ops on sparse tensors that touch no element, or copy part by part: the parts are on the device, and stay there."""


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of a layout of its own. A nested tensor calls itself strided."""
    return tensor.layout is not _STRIDED


def concerns_sparse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call takes a sparse tensor, or is to make one."""
    return kwargs.get("layout") not in (None, _STRIDED) or any(map(is_sparse, tensors_in(args, kwargs)))


def sparse_keys(args: tuple[Any, ...], kwargs: dict[str, Any]) -> DispatchKeySet:
    """The dispatch keys of the host's implementation for such a call."""
    layouts = [kwargs.get("layout"), *(tensor.layout for tensor in tensors_in(args, kwargs))]
    found = next((layout for layout in layouts if layout not in (None, _STRIDED)), torch.sparse_coo)
    return _COO_KEYS if found is torch.sparse_coo else _COMPRESSED_KEYS


def is_computed_whole(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host has a kernel for such tensors, and does not split the op."""
    key = "SparseCPU" if sparse_keys(args, kwargs) is _COO_KEYS else "SparseCsrCPU"
    return has_kernel(facts.name, key) or not facts.is_composite


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The strided tensors that a sparse one consists of: indices, and values last. A strided one is its own only part."""
    if not is_sparse(tensor):
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return _get(aten._indices, tensor), _get(aten._values, tensor)
    if tensor.layout in _ROWS_ARE_COMPRESSED:
        return _get(aten.crow_indices, tensor), _get(aten.col_indices, tensor), _get(aten.values, tensor)
    return _get(aten.ccol_indices, tensor), _get(aten.row_indices, tensor), _get(aten.values, tensor)


def _get(packet: Any, tensor: torch.Tensor) -> torch.Tensor:
    keys = sparse_keys((tensor,), {})
    return boxed_redispatch(packet.default)(keys, tensor)  # type: ignore[no-any-return]


def with_parts(like: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """A tensor of the layout and sizes of ``like`` out of other parts, on their device."""
    values = parts[-1]
    if like.layout is not torch.sparse_coo:
        kwargs = {"dtype": values.dtype, "layout": like.layout, "device": values.device}
        return aten._sparse_compressed_tensor_unsafe.default(*parts, like.shape, **kwargs)  # type: ignore[no-any-return]
    with _current(values.device):
        made = boxed_redispatch(aten._sparse_coo_tensor_with_dims_and_tensors.default)(
            _COO_KEYS, like.sparse_dim(), like.dense_dim(), like.shape, *parts,
            dtype=values.dtype, layout=torch.sparse_coo, device=values.device, pin_memory=False,
        )  # fmt: skip
    boxed_redispatch(aten._coalesced_.default)(_COO_KEYS, made, like.is_coalesced())
    return made  # type: ignore[no-any-return]


def _current(device: torch.device) -> AbstractContextManager[None]:
    """PyTorch gives a new sparse tensor the current device of its type, and only then looks at its parts."""
    return torch_fl.device(device) if device.type == DEVICE_TYPE else nullcontext()


def overwrite(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """What ``target.copy_(source)`` does for two tensors of one sparse layout: the parts are replaced, or written."""
    if target.layout is torch.sparse_coo:
        return boxed_redispatch(aten.copy_sparse_to_sparse_.default)(_COO_KEYS, target, source)  # type: ignore[no-any-return]
    if target.device.type == DEVICE_TYPE and target._nnz() != source._nnz():
        boxed_redispatch(aten.resize_as_sparse_.default)(_COMPRESSED_KEYS, target, source)
    return boxed_redispatch(aten.copy_.default)(_COMPRESSED_KEYS, target, source)  # type: ignore[no-any-return]


def metadata_plan(facts: OpFacts, device: Device) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Runs an op of ``METADATA`` on sparse tensors of a device."""
    redispatch, here = boxed_redispatch(facts.op), device.torch_device

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = {**kwargs, "device": here} if "device" in kwargs else kwargs
        with _current(here):
            return redispatch(sparse_keys(args, kwargs), *args, **named)

    return run
