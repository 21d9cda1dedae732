"""Which device each of cuda's numbers means: ``cuda:0`` is the session's device, then come its vendor's others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from flroute.device import table
from flroute.device.table import DEVICE_TYPE, Device
from flroute.errors import AliasError

ALIAS = "cuda"


def names_alias(place: Any) -> bool:
    """Whether ``place`` is a device, or the name of one, that the alias stands for."""
    if isinstance(place, torch.device):
        return place.type == ALIAS
    return isinstance(place, str) and place.partition(":")[0] == ALIAS


@dataclass(frozen=True)
class Ordinals:
    """Cuda's numbers and the devices they mean.

    As ``CUDA_VISIBLE_DEVICES`` does it: a script with a hard-coded ``cuda:0`` runs on the device that the session was
    opened for, whichever that is.

    Args:
        first: the session's device.

    Example:
        >>> import flroute
        >>> from flroute.device import table
        >>> ordinals = Ordinals(table.device_at(1))
        >>> ordinals.device("cuda:0"), ordinals.device(3)
        (device(type='fl', index=1), device(type='fl', index=0))
        >>> ordinals.alias(0)
        device(type='cuda', index=3)
    """

    first: Device

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order of their numbers."""
        of_vendor = [device for device in table.devices() if device.vendor == self.first.vendor]
        at = of_vendor.index(self.first)
        return tuple(of_vendor[at:] + of_vendor[:at])

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {device.index: number for number, device in enumerate(self.devices)}

    @cached_property
    def _aliases(self) -> dict[int, torch.device]:
        return {index: torch.device(ALIAS, number) for index, number in self._numbers.items()}

    def device(self, place: Any) -> Any:
        """The device that a number, ``"cuda:1"`` or ``torch.device("cuda:1")`` means; anything else as it is.

        Raises:
            AliasError: there are not so many.
        """
        if isinstance(place, int) and not isinstance(place, bool):
            return self._numbered(place) if place >= 0 else place
        if not names_alias(place):
            return place
        number = torch.device(place).index
        return torch.device(DEVICE_TYPE, table.current_index()) if number is None else self._numbered(number)

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

    def _numbered(self, number: int) -> torch.device:
        if number >= len(self.devices):
            listing = ", ".join(f"{ALIAS}:{n} is {d.vendor_device}" for n, d in enumerate(self.devices))
            raise AliasError(f"{ALIAS}:{number} does not exist; here {listing}")
        return torch.device(DEVICE_TYPE, self.devices[number].index)
