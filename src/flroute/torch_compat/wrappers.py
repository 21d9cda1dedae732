"""Tensor subclasses that wrap another tensor, and what belongs to a storage."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

WeakStorage = StorageWeakRef
"""``expired()`` once the storage is gone; until the reference goes, too, its address in C++ is nobody else's."""

share_storage = torch._functionalize_unsafe_set
"""Give the first wrapper the storage of the second, and leave its sizes, strides and offset as they are."""


def wrapper_of(cls: type[torch.Tensor], inner: torch.Tensor, *, requires_grad: bool) -> Any:
    """A tensor of the class ``cls`` that looks like ``inner`` and has no memory of its own."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        inner.size(),
        strides=inner.stride(),
        storage_offset=inner.storage_offset(),
        dtype=inner.dtype,
        layout=inner.layout,
        device=inner.device,
        requires_grad=requires_grad,
    )


def set_geometry(wrapper: torch.Tensor, inner: torch.Tensor) -> None:
    """Give a wrapper the sizes, strides and offset of another tensor, without telling anyone."""
    with below_dispatch():
        meta_in_tls = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            torch.ops.aten.set_.source_Storage_storage_offset(
                wrapper, wrapper.untyped_storage(), inner.storage_offset(), inner.size(), inner.stride()
            )
        finally:
            torch._C._set_meta_in_tls_dispatch_include(meta_in_tls)


def below_dispatch() -> Any:
    """A context in which no dispatch mode and no tensor subclass sees what is called."""
    return torch._C._DisableTorchDispatch()
