"""Pinned host memory: the device needs none, and what asks for it gets ordinary memory of the host.

Where another accelerator is present, pinned memory is that one's.
"""

from __future__ import annotations

import atexit

import torch

from flroute.torch_compat import PinnedMemoryPatch, layouts_are_known

_patch: PinnedMemoryPatch | None = None


def install(library: torch.library.Library) -> None:
    """Answer ``pin_memory`` and ``is_pinned`` of host tensors, and ``pin_memory=True`` where that can be done.

    ``pin_memory()`` gives the tensor itself. What was allocated with ``pin_memory=True`` says that it is pinned: DDP, which
    allocates its map of unused parameters that way, insists on it.
    """
    if any(backend.is_available() for backend in (torch.cuda, torch.xpu, torch.mtia)):
        return
    library.impl("is_pinned", _is_pinned, "CPU")
    library.impl("pin_memory", lambda tensor, device=None: tensor, "CPU")  # noqa: ARG005
    library.impl("_pin_memory", lambda tensor, device=None: tensor.clone(), "CPU")  # noqa: ARG005
    # the tensor that comes back has its history already
    library.impl("pin_memory", torch.library.fallthrough_kernel, "AutogradCPU")
    _patch_the_allocator()


def can_be_allocated() -> bool:
    """Whether ``torch.empty(n, pin_memory=True)`` works because of us."""
    return _patch is not None


def _patch_the_allocator() -> None:
    global _patch
    if _patch is None and layouts_are_known():
        patch = PinnedMemoryPatch()
        patch.install()
        if patch.works():
            _patch = patch
            atexit.register(patch.remove)
        else:
            patch.remove()


def _is_pinned(tensor: torch.Tensor, device: torch.device | None = None) -> bool:  # noqa: ARG001 -- aten's signature
    return _patch is not None and _patch.is_pinned(tensor)
