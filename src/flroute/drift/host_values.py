"""What is in a device tensor, seen from the host without a trace in the session's accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.table import DEVICE_TYPE, device_at
from flroute.device.tensors import host_alias, settle
from flroute.routing import transfers
from flroute.torch_compat import HOST_KEYS, neg_view

_view = torch.ops.aten.view.default


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a reference has its values: float64, complex128, or that of integers and truth values themselves."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor has elements, strided and not quantized: what a reference can be carried for."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return not (tensor.is_quantized or tensor.is_nested)


def seen_from_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a dense tensor in its own dtype, with its strides: an alias where the host sees the memory, else a copy."""
    where = tensor.device
    if where.type != DEVICE_TYPE:
        return tensor.detach().cpu() if where.type != "cpu" else tensor.detach()
    count, address = tensor.numel(), tensor.data_ptr()
    if not count:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if not address:  # an "efficient zero" gradient owns no memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    device = device_at(where.index)
    if device.memory.host_visible:
        lazy = tensor.is_conj() or tensor.is_neg()
        if not lazy and _is_all_of_its_storage(tensor, count):  # most are, and this takes a third of the time
            settle(device)
            flat = torch.frombuffer(MEMORY, dtype=tensor.dtype, count=count, offset=address - BASE)
            return flat if tensor.dim() == 1 else _view.redispatch(HOST_KEYS, flat, tensor.shape)
        alias = host_alias(tensor)
        return resolved(alias) if lazy else alias
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    transfers.move(tensor, made, transfers.Moved())
    return made


def _is_all_of_its_storage(tensor: torch.Tensor, count: int) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == count * tensor.itemsize


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Without lazy bits: below a dispatch mode nobody resolves them."""
    if tensor.is_conj():
        tensor = torch.conj_physical(tensor.conj())
    return torch.neg(neg_view(tensor)) if tensor.is_neg() else tensor


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor's elements, in order."""
    flat = tensor.contiguous().as_strided(
        (tensor.numel(),), (1,)
    )  # PyTorch calls any stride of one element contiguous
    return flat.view(torch.uint8)


def map_values(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """An argument with each tensor in it, in lists too, replaced by what ``function`` makes of it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([map_values(function, item) for item in value])
    return value


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, those in lists too, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in tensors_of(item)]
    return []
