"""Which device each of cuda's numbers means: ``cuda:0`` is the session's device, then come its vendor's others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from flroute.device import table
from flroute.device.table import DEVICE_TYPE, Device
from flroute.errors import DeviceError
from flroute.torch_compat import without_function_modes

ALIAS = "cuda"


def cuda_device(number: int | None = None) -> torch.device:
    """Cuda's own, even while the name means another."""
    with without_function_modes():
        return torch.device(ALIAS) if number is None else torch.device(ALIAS, number)


VISIBLE = "CUDA_VISIBLE_DEVICES"


def names_alias(place: Any) -> bool:
    """Whether ``place`` is a device, or the name of one, that the alias stands for."""
    if isinstance(place, torch.device):
        return place.type == ALIAS
    return isinstance(place, str) and place.partition(":")[0] == ALIAS


@dataclass(frozen=True)
class Ordinals:
    """Cuda's numbers and the devices they mean.

    A script with a hard-coded ``cuda:0`` runs on the device that the session was opened for, whichever that is, and
    ``CUDA_VISIBLE_DEVICES`` chooses among them.

    Args:
        first: the session's device.

    Example:
        >>> import flroute
        >>> from flroute.device import table
        >>> ordinals = Ordinals(table.device_at(1))
        >>> ordinals.device("cuda:0"), ordinals.device(1)
        (device(type='fl', index=1), device(type='fl', index=0))
        >>> ordinals.alias(0)
        device(type='cuda', index=1)
    """

    first: Device

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order of their numbers; found when one is first needed: until then a script may say which."""
        of_vendor = [device for device in table.devices() if device.vendor == self.first.vendor]
        at = of_vendor.index(self.first)
        return _visible([*of_vendor[at:], *of_vendor[:at]])

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {device.index: number for number, device in enumerate(self.devices)}

    @cached_property
    def _aliases(self) -> dict[int, torch.device]:
        return {index: cuda_device(number) for index, number in self._numbers.items()}

    def device(self, place: Any) -> Any:
        """The device that a number, ``"cuda:1"`` or ``torch.device("cuda:1")`` means; anything else as it is.

        Raises:
            DeviceError: there are not so many.
        """
        if isinstance(place, int) and not isinstance(place, bool):
            return self._numbered(place) if place >= 0 else place
        if not names_alias(place):
            return place
        number = torch.device(place).index
        return self._current() if number is None else self._numbered(number)

    def index(self, place: Any) -> Any:
        """The same, as an index of ``fl`` where ``place`` is a number."""
        found = self.device(place)
        return found.index if isinstance(place, int) and isinstance(found, torch.device) else found

    def alias(self, index: int) -> torch.device | None:
        """What cuda calls ``fl:index``; ``None`` for a device of another vendor."""
        return self._aliases.get(index)

    def number(self, index: int) -> int:
        """The number of ``fl:index``, itself for a device of another vendor."""
        return self._numbers.get(index, index)

    def _current(self) -> torch.device:
        """The thread's device, unless it was made invisible."""
        index = table.current_index()
        return torch.device(DEVICE_TYPE, index) if index in self._numbers else self._numbered(0)

    def _numbered(self, number: int) -> torch.device:
        if number >= len(self.devices):
            listing = ", ".join(f"{ALIAS}:{n} is {d.vendor_device}" for n, d in enumerate(self.devices))
            limit = f", by {VISIBLE}={os.environ[VISIBLE]!r}" if VISIBLE in os.environ else ""
            raise DeviceError(f"{ALIAS}:{number} does not exist; here {listing or 'there is none'}{limit}")
        return torch.device(DEVICE_TYPE, self.devices[number].index)


def _visible(devices: list[Device]) -> tuple[Device, ...]:
    """Those that ``CUDA_VISIBLE_DEVICES`` names, up to the first that is not there, as CUDA reads it."""
    asked = os.environ.get(VISIBLE)
    if asked is None:
        return tuple(devices)
    chosen: list[Device] = []
    for word in asked.split(","):
        if not word.strip().isdigit() or int(word) >= len(devices):
            break
        chosen.append(devices[int(word)])
    return tuple(chosen)
