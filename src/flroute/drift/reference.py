"""What a device's values are held against: the host in float64, the host in the same dtype, or another device."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE, Device
from flroute.device.tensors import upload
from flroute.device_names import resolve_device
from flroute.drift.formulas import computed_by
from flroute.drift.host_values import map_values, seen_from_host, wide
from flroute.errors import ShadowError
from flroute.torch_compat import below_dispatch, outside_dispatch_modes

Read = Callable[[torch.Tensor], torch.Tensor]
"""Gives the reference's value of a tensor on the device."""


class Reference(ABC):
    """Computes ops on values that lie on the host, in a dtype of its own choice.

    Attributes:
        name: as given to ``shadow``.
        torch_device: where it computes.
        roundings: how many times the tolerance of a kernel it may be away itself, in units of that of one kernel.
        seconds: spent in its ops so far.
    """

    name: str
    torch_device: torch.device
    roundings: float

    def __init__(self) -> None:
        self.seconds = 0.0

    @abstractmethod
    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which it has the values of a tensor of the device."""

    @abstractmethod
    def _run(self, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any: ...

    def run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], read: Read) -> Any:
        """The op on what ``read`` has for each tensor among the arguments; what the op writes is written there.

        Raises:
            Exception: whatever the op raises.
        """
        here = [self._argument(value, read) for value in args]
        named = {name: self._argument(value, read) for name, value in kwargs.items()}
        start = time.perf_counter()
        try:
            return self._run(op, here, named)
        finally:
            self.seconds += time.perf_counter() - start

    def _argument(self, value: Any, read: Read) -> Any:
        """An argument as the reference takes it, which has dtypes and a device of its own."""
        if isinstance(value, torch.Tensor):
            return read(value)
        if isinstance(value, list | tuple):
            return type(value)([self._argument(item, read) for item in value])
        if isinstance(value, torch.dtype):
            return self.dtype_for(value)
        return self.torch_device if isinstance(value, torch.device) else value


class HostReference(Reference):
    """The host, in float64 or in the dtype of the device."""

    torch_device = torch.device("cpu")

    def __init__(self, *, precise: bool) -> None:
        super().__init__()
        self.name = "host-float64" if precise else "host"
        self.roundings = 1.0 if precise else 2.0
        self._precise = precise

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        """Float64 and complex128 if it is precise."""
        return wide(dtype) if self._precise else dtype

    def _run(self, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return computed_by(op)(*args, **kwargs)


class DeviceReference(Reference):
    """Another device, in the dtypes of the one that is judged."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.name = device.vendor_device
        self.torch_device = device.torch_device
        self.roundings = 2.0
        self._device = device

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        """The same."""
        return dtype

    def _run(self, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        there: list[tuple[torch.Tensor, torch.Tensor]] = []

        def sent(tensor: torch.Tensor) -> torch.Tensor:
            made = upload(self._device, tensor.contiguous() if _overlaps(tensor) else tensor)
            there.append((tensor, made))
            return made

        moved = map_values(sent, args)
        named = {name: map_values(sent, value) for name, value in kwargs.items()}
        with outside_dispatch_modes():
            result = op(*moved, **named)
        for host, made in there:
            if made.shape == host.shape and not torch.equal(seen_from_host(made), host):
                host.copy_(seen_from_host(made))
        back = {id(made): host for host, made in there}
        return map_values(lambda made: back.get(id(made), seen_from_host(made).clone()), result)


def _overlaps(tensor: torch.Tensor) -> bool:
    return 0 in tensor.stride()


def reference_of(name: str) -> Reference:
    """The reference that ``"host-float64"``, ``"host"`` or ``"vendor:0"`` means.

    Raises:
        ShadowError: it is none of these.
        UnknownVendorError: no such vendor.
        DeviceError: no such device.
    """
    if name in ("host-float64", "host"):
        return HostReference(precise=name == "host-float64")
    if not isinstance(name, str) or name.partition(":")[0] in ("cpu", "cuda"):
        raise ShadowError(
            f"reference={name!r}: it is 'host-float64', 'host', or a device of a vendor as in 'vendor:0' or "
            f"'{DEVICE_TYPE}:1'"
        )
    return DeviceReference(resolve_device(name))


def without_modes() -> Any:
    """A context for work on values of a reference: no mode and no session sees it."""
    return below_dispatch()
