"""What a user may call a device: ``"vendor"``, ``"vendor:1"``, ``"fl"`` or ``"fl:1"``."""

from __future__ import annotations

from flroute import registry
from flroute.device import table
from flroute.errors import DeviceError
from flroute.settings import load_settings


def resolve_device(name: str | None) -> table.Device:
    """The device that ``"vendor"``, ``"vendor:1"``, ``"fl"`` or ``"fl:1"`` means.

    Raises:
        UnknownVendorError: no such vendor.
        DeviceError: no such device.
    """
    if name is None:
        name = load_settings().default_vendor
    kind, colon, number = name.partition(":")
    if colon and not number.isdigit():
        raise DeviceError(f"device {name!r}: after the colon comes a number, as in '{kind}:0'")
    if kind == table.DEVICE_TYPE:
        return table.device_at(int(number) if number else table.current_index())
    registry.load().vendor(kind)
    of_vendor = [device for device in table.devices() if device.vendor == kind]
    if int(number or 0) >= len(of_vendor):
        there = ", ".join(device.vendor_device for device in of_vendor)
        raise DeviceError(f"vendor {kind!r} has no device {number}; it has: {there}")
    return of_vendor[int(number or 0)]
