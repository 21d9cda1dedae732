"""PyTorch Lightning's ``Trainer`` on the device; import it only where ``pytorch_lightning`` is installed."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pytorch_lightning.accelerators import Accelerator
from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision
from pytorch_lightning.strategies import SingleDeviceStrategy

from flroute import activation
from flroute.device import torch_fl
from flroute.device.table import DEVICE_TYPE, to_index
from flroute.device_names import resolve_device
from flroute.errors import DeviceError

PrecisionName = Literal["32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]


def strategy(
    device: str | torch.device = DEVICE_TYPE, precision: PrecisionName = "32-true"
) -> SingleDeviceStrategy:
    """What ``Trainer(strategy=...)`` takes to train on one device.

    Lightning takes any other strategy than its own to be for cuda or the host; so this one says device, accelerator and
    precision together, and ``Trainer`` is given none of them.

    Args:
        device: every name that ``flroute.device`` takes.
        precision: as in ``Trainer(precision=...)``; ``"16-mixed"`` comes with a ``GradScaler``.

    Raises:
        DeviceError: no such device.
        UnknownVendorError: no such vendor.

    Example:
        >>> strategy("reference:1", precision="bf16-mixed").root_device
        device(type='fl', index=1)
    """
    activation.activate()
    where = resolve_device(str(device)).torch_device
    return SingleDeviceStrategy(where, accelerator=FlAccelerator(), precision_plugin=_precision(precision))


def _precision(name: PrecisionName) -> Precision:
    if name == "16-mixed" or name == "bf16-mixed":  # noqa: PLR1714 -- what mypy narrows the type by
        return MixedPrecision(name, DEVICE_TYPE)
    if name == "16-true" or name == "bf16-true":  # noqa: PLR1714
        return HalfPrecision(name)
    if name == "32-true":
        return Precision()
    raise ValueError(
        f"precision {name!r} is not one of '32-true', '16-mixed', 'bf16-mixed', '16-true', 'bf16-true'"
    )


class FlAccelerator(Accelerator):
    """What Lightning asks about a kind of device."""

    def setup_device(self, device: torch.device) -> None:
        """Check that the device is ours.

        Raises:
            DeviceError: it is of another type or does not exist.
        """
        to_index(device)

    def teardown(self) -> None:
        """Give back the memory that no tensor uses."""
        torch_fl.empty_cache()

    def get_device_stats(self, device: str | torch.device | int) -> dict[str, Any]:
        """What ``DeviceStatsMonitor`` logs: numbers about the device's memory."""
        return dict(torch_fl.memory_stats(device))

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Indices, from how many devices are wanted, or which.

        Raises:
            DeviceError: more than there are, or one that there is not.
        """
        if isinstance(devices, list):
            return [torch.device(DEVICE_TYPE, index).index for index in devices]
        wanted, there = int(devices), torch_fl.device_count()
        if not 0 < wanted <= there:
            raise DeviceError(
                f"Lightning was asked for {wanted} devices, and there are {there} in this process"
            )
        return list(range(wanted))

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """The devices with these indices."""
        return [torch.device(DEVICE_TYPE, index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """One: a strategy for several needs a process for each."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Whether there is a device."""
        return torch_fl.is_available()

    @staticmethod
    def name() -> str:
        """``"fl"``."""
        return DEVICE_TYPE
