"""Pinned host memory, which copies to and from the device do not need: who asks for it gets ordinary memory that says it is."""

from __future__ import annotations

import torch

from flroute.torch_compat import WeakStorage, storage_key

_pinned: dict[int, WeakStorage] = {}  # by their address in C++


def can_be_pinned() -> bool:
    """Whether this machine has an accelerator whose PyTorch backend pins host memory."""
    return any(backend.is_available() for backend in (torch.cuda, torch.xpu, torch.mtia))


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself, whose memory says from now on that it is pinned."""
    storage = tensor.untyped_storage()
    for key in [key for key, one in _pinned.copy().items() if one.expired()]:
        _pinned.pop(key, None)
    _pinned[storage_key(storage)] = WeakStorage(storage)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether somebody asked for this memory as pinned."""
    found = _pinned.get(storage_key(tensor.untyped_storage()))
    return found is not None and not found.expired()
