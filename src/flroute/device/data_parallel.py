"""What ``torch.nn.DataParallel`` moves between devices, where these are flroute's: four functions of ``torch.nn.parallel.comm``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import comm

from flroute.device.table import DEVICE_TYPE, current_index
from flroute.device.tensors import is_on_device

Place = torch.device | int | str | None


def replace(function: Callable[..., Any]) -> None:
    """Let ``function`` serve the calls that are about ``fl``, and the one of that name in PyTorch the others."""
    original = getattr(comm, function.__name__)

    @functools.wraps(original)
    def either(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        ours = _is_about_device(tensors) and kwargs.get("out") is None
        return (function if ours else original)(tensors, *args, **kwargs)

    setattr(comm, function.__name__, either)


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[Place],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Any = None,  # noqa: ARG001 -- copies have completed when they return
    *,
    out: None = None,  # noqa: ARG001 -- PyTorch's signature
) -> tuple[torch.Tensor, ...]:
    """A part of a tensor for each device."""
    parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return tuple(part.to(_device(place)) for part, place in zip(parts, devices, strict=False))


def gather(
    tensors: Sequence[torch.Tensor],
    dim: int = 0,
    destination: Place = None,
    *,
    out: None = None,  # noqa: ARG001 -- PyTorch's signature
) -> torch.Tensor:
    """The parts in one tensor; on the host for ``"cpu"`` or -1."""
    target = torch.device("cpu") if destination in ("cpu", -1) else _device(destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[Place],
    buffer_size: int = 0,  # noqa: ARG001 -- PyTorch's signature
) -> list[list[torch.Tensor]]:
    """The tensors on each device."""
    return [[tensor.to(_device(place)) for tensor in tensors] for place in devices]


def reduce_add_coalesced(
    inputs: Sequence[Sequence[torch.Tensor]],
    destination: Place = None,
    buffer_size: int = 0,  # noqa: ARG001 -- PyTorch's signature
) -> tuple[torch.Tensor, ...]:
    """The sums over devices of each tensor."""
    target = _device(destination)
    return tuple(
        functools.reduce(torch.add, [t.to(target) for t in same]) for same in zip(*inputs, strict=True)
    )


def _device(place: Place) -> torch.device:
    if place is None:
        return torch.device(DEVICE_TYPE, current_index())
    return torch.device(DEVICE_TYPE, place) if isinstance(place, int) else torch.device(place)


def _is_about_device(tensors: Any) -> bool:
    """Whether tensors are on ``fl``, or on the host in a process whose accelerator it is."""
    while isinstance(tensors, list | tuple) and tensors:
        tensors = tensors[0]
    if not isinstance(tensors, torch.Tensor) or tensors.device.type != "cpu":
        return is_on_device(tensors)
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == DEVICE_TYPE
