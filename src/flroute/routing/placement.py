"""Which device a call belongs to, and whether all its tensors are there."""

from __future__ import annotations

from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.errors import DeviceError
from flroute.routing import transfers
from flroute.routing.schema import OpFacts, bind, tensors_in


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Dtypes, devices and layouts of the tensor arguments: what a plan depends on."""
    key: list[Any] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            key.append(value.dtype)
            key.append(value.device)
            if value.layout is not torch.strided:
                key.append(value.layout)
        elif isinstance(value, list | tuple):
            key.extend((t.dtype, t.device, t.layout) for t in value if isinstance(t, torch.Tensor))
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor):
            key.append((name, value.dtype, value.device, value.layout))
        elif isinstance(value, list | tuple):
            key.extend((name, t.dtype, t.device, t.layout) for t in value if isinstance(t, torch.Tensor))
        elif isinstance(value, torch.device | torch.layout):
            key.append(value)
    return tuple(key)


def device_of_call(
    tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Device | None:
    """The device a call belongs to: an explicit ``device=``, else that of the first device tensor; ``None`` for the host."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
            return transfers.device_of_factory(value)
    for tensor in tensors:
        if tensor.device.type == DEVICE_TYPE:
            return device_at(tensor.device.index)
    return None


def check_same_device(facts: OpFacts, device: Device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """All tensors on one device; 0-dim host tensors count as scalars, as on cuda."""
    if any(isinstance(value, torch.device) for value in (*args, *kwargs.values())):
        return  # a factory that says where, such as zeros_like(host_tensor, device="fl")
    here = device.torch_device
    written = {argument.name for argument in facts.written}
    for name, value in bind(facts, args, kwargs).items():
        if name in facts.host_arguments:
            continue
        for tensor in tensors_in((value,), {}):
            scalar = tensor.device.type == "cpu" and tensor.dim() == 0 and name not in written
            if tensor.device == here or scalar:
                continue
            raise DeviceError(
                f"{facts.name}: expected all tensors to be on the same device, but argument {name!r} "
                f"({tensor.dtype} {list(tensor.shape)}) is on {tensor.device} and others are on {here}. "
                f"Move it first: {name}.to({str(here)!r})"
            )
