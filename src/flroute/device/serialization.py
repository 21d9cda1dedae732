"""``torch.save`` and ``torch.load`` for device tensors, with every form of ``map_location``.

PyTorch's own restorer for out-of-tree devices builds an empty storage on the device in C++, which a device written in
Python cannot give it: the process would die. A restorer registered below the built-in ones answers first.
"""

from __future__ import annotations

from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE, to_index
from flroute.device.tensors import to_device
from flroute.errors import DeviceError

_PRIORITY = 5  # the built-in ones begin at 10 (torch/serialization.py), lower ones are asked first

_installed = False


def install() -> None:
    """Register the device with ``torch.save`` and ``torch.load``."""
    global _installed
    if not _installed:
        torch.serialization.register_package(_PRIORITY, _location_of, _restore)
        _installed = True


def installed() -> bool:
    """Whether the device is registered with ``torch.save`` and ``torch.load``."""
    return _installed


def storage_on_device(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """A copy of a host storage on ``fl:index``."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")  # said, for a session's default is the device
    return to_device(nothing.set_(host), index).untyped_storage()


def load_on_device(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """The same as an op: what a checkpoint brings to the device is a copy that a session counts."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    return nothing.set_(host).to(torch.device(DEVICE_TYPE, index)).untyped_storage()


def name_of(index: int) -> str:
    """What a file calls ``fl:index``; in a session where cuda means the device, cuda's name for it."""
    return f"{DEVICE_TYPE}:{index}"


def index_of(location: str) -> int | None:
    """The device that a file calls ``location``; ``None`` if that is none of ours.

    Raises:
        DeviceError: it would be ours, but there are not so many.
    """
    return to_index(location) if location.partition(":")[0] == DEVICE_TYPE else None


def _location_of(storage: Any) -> str | None:
    device = storage.device
    return name_of(device.index) if device.type == DEVICE_TYPE else None


def _restore(storage: Any, location: str) -> torch.UntypedStorage | None:
    try:
        index = index_of(location)
    except DeviceError as error:
        raise DeviceError(
            f"{error}. What was saved on another machine's devices loads where map_location says: "
            f"torch.load(..., map_location={DEVICE_TYPE!r}), or map_location='cpu'"
        ) from error
    return None if index is None else load_on_device(storage, index)
