"""Storages of tensors on the device say cuda, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.patches import Patch
from flroute.device.table import DEVICE_TYPE

Read = Callable[[Any], Any]


def patches() -> Iterator[Patch]:
    """What storages of both kinds say."""
    for owner in ("torch.UntypedStorage", "torch.TypedStorage"):
        for name, make in (("device", _device), ("is_cuda", _is_cuda), ("get_device", _get_device)):
            yield Patch(owner, name, make, "says cuda")


def _device(original: Any) -> Any:
    def read(self: Any) -> Any:
        device = original.__get__(self)
        return (
            device if _gets_the_truth(device, asker(1)) else current().ordinals.alias(device.index) or device
        )

    return property(read)


def _is_cuda(original: Any) -> Any:
    def read(self: Any) -> bool:
        device = self.device
        if _gets_the_truth(device, asker(1)):
            return bool(original.__get__(self))
        return current().ordinals.alias(device.index) is not None

    return property(read)


def _get_device(original: Any) -> Any:
    @functools.wraps(original)
    def read(self: Any) -> int:
        device = self.device
        told: int = original(self)
        return told if _gets_the_truth(device, asker(1)) else current().ordinals.number(device.index)

    return read


def _gets_the_truth(device: Any, frame: FrameType) -> bool:
    return device.type != DEVICE_TYPE or is_own(frame)
