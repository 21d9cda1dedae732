"""Questions about devices and vendors, answered."""

from __future__ import annotations

import torch

from flroute import activation, registry
from flroute.device import table
from flroute.device_names import resolve_device
from flroute.registry import Vendor


def devices() -> tuple[table.Device, ...]:
    """Every device of every vendor, in index order; loads the vendors.

    Example:
        >>> import flroute
        >>> flroute.devices()[0].vendor_device
        'reference:0'
    """
    return table.devices()


def vendors() -> tuple[Vendor, ...]:
    """Every vendor, in the order of their devices."""
    return tuple(registry.load().vendors.values())


def device(name: str) -> torch.device:
    """The PyTorch device a vendor's name means.

    Raises:
        UnknownVendorError: no such vendor.
        DeviceError: no such device.

    Example:
        >>> import flroute
        >>> flroute.device("reference:1")
        device(type='fl', index=1)
    """
    activation.activate()
    return resolve_device(name).torch_device


def current_device() -> torch.device:
    """This thread's current device: the session's, inside one."""
    activation.activate()
    return table.device_at(table.current_index()).torch_device
