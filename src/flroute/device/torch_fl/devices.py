"""Which devices there are, which one is current, and what is known about each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flroute.device import table
from flroute.device.serialization import load_on_device
from flroute.device.table import DEVICE_TYPE, DeviceLike

__all__ = [
    "AcceleratorError",
    "DeviceProperties",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "has_half",
    "has_magma",
    "init",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
]

AcceleratorError = torch.cuda.AcceleratorError
has_half = True
has_magma = False


def is_available() -> bool:
    """Whether there is a device."""
    return device_count() > 0


def init() -> None:
    """Load the vendors now rather than at first use."""
    table.devices()


def is_initialized() -> bool:
    """Whether the device can be used; it needs no initialisation."""
    return True


def device_count() -> int:
    """How many devices there are, of all vendors."""
    return table.device_count()


class DeviceIndex(int):
    """A device by its number, wherever PyTorch takes one; ``torch.load``, which takes none, can call it."""

    __slots__ = ()

    def __call__(self, storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        """What ``torch.load(..., map_location=torch.fl.current_device())`` does with each storage of a file."""
        return load_on_device(storage, self)


def current_device() -> DeviceIndex:
    """Index of this thread's current device; a ``map_location`` of ``torch.load``, too."""
    return DeviceIndex(table.current_index())


def set_device(device: DeviceLike) -> None:
    """Make ``device`` this thread's current device, or change nothing if it is negative; prefer ``with torch.fl.device(...)``."""
    if isinstance(device, int) and device < 0:
        return
    table.set_current_index(table.to_index(device))


class device:  # noqa: N801 -- torch.cuda.device's name
    """Context in which ``device`` is the current one; ``None`` or a negative index changes nothing.

    Example:
        >>> import flroute, torch
        >>> with torch.fl.device(1):
        ...     torch.fl.current_device()
        1
    """

    def __init__(self, device: DeviceLike) -> None:
        absent = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if absent else table.to_index(device)
        self._claims: list[list[int]] = []

    def __enter__(self) -> None:
        self._claims.append(table.push_current(self.idx if self.idx >= 0 else table.current_index()))

    def __exit__(self, *_: object) -> None:
        table.pop_current(self._claims.pop())


class device_of(device):  # noqa: N801 -- torch.cuda.device_of's name
    """Context in which the device of a tensor or storage is the current one; if it is on no such device, nothing changes.

    Example:
        >>> import flroute, torch
        >>> with torch.fl.device_of(torch.ones(1, device="fl:1")):
        ...     torch.fl.current_device()
        1
    """

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == DEVICE_TYPE else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What is known about a device."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    vendor: str


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, memory in bytes, capability, number of cores and vendor."""
    found = table.device_at(table.to_index(device))
    facts = found.facts
    return DeviceProperties(
        facts.name, facts.total_memory, *facts.capability, facts.multi_processor_count, found.vendor
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The product's name."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(major, minor), in the vendor's own numbering."""
    return table.device_at(table.to_index(device)).facts.capability


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether one device copies to the other without the host: two devices of one vendor do."""
    one, other = (table.device_at(table.to_index(which)) for which in (device, peer_device))
    return one is not other and one.memory is other.memory


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes in bfloat16; what its vendor has no kernel for the host computes."""
    return including_emulation or table.device_at(table.current_index()).facts.bfloat16


def is_tf32_supported() -> bool:
    """Whether there is TF32, which is cuda's: never."""
    return False


def get_arch_list() -> list[str]:
    """The architectures kernels were compiled for: none, they are Python."""
    return []


def ipc_collect() -> None:
    """Release memory that other processes have finished with: there is none, memory is never shared."""
