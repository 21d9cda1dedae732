"""Tensors and their memory, below what PyTorch's own Python shows of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.queue import ConnectionWrapper

from flroute.torch_compat.collectives import OBJECT_COLLECTIVES

UNPICKLERS = frozenset({
    torch.serialization._load.__code__,
    torch.serialization._legacy_load.__code__,
    torch._weights_only_unpickler.Unpickler.load.__code__,
    ConnectionWrapper.recv.__code__,
    *OBJECT_COLLECTIVES,
})  # fmt: skip
"""Where PyTorch makes objects again that somebody pickled."""
from_dlpack = torch._C._from_dlpack
neg_view = torch._neg_view


def host_storage_at(address: int, nbytes: int) -> Any:
    """A host storage over memory that someone else owns and keeps alive."""
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """How many tensors and storages share this memory, ``storage`` itself included."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def storage_key(storage: torch.UntypedStorage) -> int:
    """What two Python objects for one storage have in common: its address in C++."""
    return int(storage._cdata)


def plain_alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor, whatever the subclass has to say about it."""
    with torch._C.DisableTorchFunction():
        return tensor.data


def before_printing(prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Print ``prepare(tensor)`` wherever the elements of a tensor are printed."""
    render = torch._tensor_str._tensor_str

    @functools.wraps(render)
    def render_prepared(self: torch.Tensor, indent: int) -> Any:
        return render(prepare(self), indent)  # type: ignore[no-untyped-call]

    torch._tensor_str._tensor_str = render_prepared


def replace_storage_resize(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(original)`` in the place of ``torch.UntypedStorage.resize_``."""
    torch.UntypedStorage.resize_ = make(torch.UntypedStorage.resize_)  # type: ignore[method-assign]
