"""DLPack out of the device: what ``Tensor.__dlpack__`` says for a device that PyTorch knows by another name only."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from flroute.device.capsule import relabel_for_host
from flroute.device.table import DEVICE_TYPE, device_at
from flroute.device.tensors import settle


def install() -> None:
    """Let other libraries take device tensors: as they are, or without a copy as the host's where the host sees them."""
    _answer_device()
    _export_to_host()


def _answer_device() -> None:
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def dlpack_device(self: torch.Tensor) -> Any:
        device = self.device
        return (DLDeviceType.kDLExtDev, device.index) if device.type == DEVICE_TYPE else original(self)

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]


def _export_to_host() -> None:
    original = torch.Tensor.__dlpack__

    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *, dl_device: Any = None, copy: bool | None = None, **kwargs: Any) -> Any:
        to_host = dl_device is not None and dl_device[0] == DLDeviceType.kDLCPU
        if copy or not to_host or self.device.type != DEVICE_TYPE:
            return original(self, dl_device=dl_device, copy=copy, **kwargs)
        device = device_at(self.device.index)
        if device.memory.host_visible and not self.is_neg():
            settle(device)
            capsule = original(self, **kwargs)
            relabel_for_host(capsule)
            return capsule
        if copy is False:
            raise BufferError(
                f"the host does not see the memory of {device.name} ({device.vendor_device}): a tensor on it cannot be given to "
                "a library of the host without a copy. Leave out copy=False, or pass tensor.cpu()"
            )
        return original(self, dl_device=dl_device, copy=copy, **kwargs)

    torch.Tensor.__dlpack__ = dlpack  # type: ignore[method-assign]
