"""Autocast on the device: leaving it out, what it may keep, and when to forget that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from flroute.torch_compat.ops import DispatchKey, DispatchKeySet

_AUTOCAST_DEVICE = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]


def without_device_autocast() -> Any:
    """A context in which ``torch.autocast("fl")`` does not act: what it cast already is not to be cast again."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_DEVICE)


def when_autocast_ends(forget: Callable[[], None]) -> None:
    """Call ``forget`` with ``torch.clear_autocast_cache``, which the outermost autocast of a thread calls as it ends."""
    clear = torch.clear_autocast_cache

    @functools.wraps(clear)
    def clear_all() -> None:
        forget()
        clear()

    torch.clear_autocast_cache = clear_all


def has_memory_of_its_own(tensor: torch.Tensor) -> bool:
    """Whether it is memory and no more: no view, no subclass of the user's, nothing fake, no wrapper of vmap or grad.

    Nor a tensor made in inference mode, which has no version.
    """
    return (
        type(tensor) in {torch.Tensor, torch.nn.Parameter}
        and not tensor._is_view()
        and not tensor.is_inference()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written; not for tensors made in inference mode, which do not count."""
    return int(tensor._version)
