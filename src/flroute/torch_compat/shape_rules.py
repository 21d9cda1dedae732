"""Tensors without data: PyTorch's rules for what a result looks like."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _HostShapeRules(threading.local):
    """Whether this thread asks for the host's shape rules; see ``host_shape_rules``."""

    active = False


_host_shape_rules = _HostShapeRules()
_hint_of_device = torch._meta_registrations.device_hint


def _hint_of_host(tensor: Any) -> Any:
    if _host_shape_rules.active and type(tensor) is torch.Tensor and tensor.is_meta:
        return "cpu"
    return _hint_of_device(tensor)


@contextmanager
def host_shape_rules() -> Iterator[None]:
    """A context in which PyTorch's rules for plain meta tensors are the host's.

    Where host and cuda lay out a result differently (Fourier transforms, ``linalg.svd``), the rules look at the device, and
    take a meta tensor, which says none, for one on cuda.
    """
    torch._meta_registrations.device_hint = _hint_of_host  # for other threads and tensors it answers as ever
    before, _host_shape_rules.active = _host_shape_rules.active, True
    try:
        yield
    finally:
        _host_shape_rules.active = before


def fake_tensors() -> Any:
    """A mode in which tensors have shape, dtype, strides and device, and no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def fake_like(tensor: torch.Tensor, mode: Any, device: torch.device) -> torch.Tensor:
    """A fake tensor with the metadata of ``tensor``, on another device."""
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def fake_refusals() -> tuple[type[Exception], ...]:
    """What fake tensors raise where a number, or a shape, depends on data."""
    from torch._subclasses import fake_tensor

    return (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with each tensor in it, however deep, replaced by what ``function`` makes of it."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, function, value)
