"""What the doctor sees of vendors: those that loaded, and those that did not."""

from __future__ import annotations

from collections.abc import Iterator

from flroute.doctor.checks import Check, State


def loaded() -> Iterator[Check]:
    """Each vendor with its devices, each plugin that broke a rule, and kernels for ops that this PyTorch lacks."""
    from flroute import registry
    from flroute.device import table

    found = registry.load()
    for vendor in found.vendors.values():
        devices = ", ".join(
            f"{device.name} = {device.vendor_device} ({device.facts.name})"
            for device in table.devices()
            if device.vendor == vendor.name
        )
        versions = [vendor.version]
        versions += [f"driver {vendor.driver_version}"] if vendor.driver_version else []
        versions += [f"firmware {vendor.firmware_version}"] if vendor.firmware_version else []
        yield Check(f"vendor {vendor.name}", State.GREEN, f"{', '.join(versions)}: {devices}")
    if not found.vendors:
        yield Check("vendors", State.RED, "none: there is no device", "pip install the package for your chip")
    for problem in found.problems:
        yield Check(
            f"vendor plugin {problem.plugin}", State.RED, str(problem),
            f"tell who makes {problem.plugin!r}; the message names the rule and the line that breaks it",
        )  # fmt: skip
    absent: dict[str, list[str]] = {}
    for entry in dict.fromkeys(found.unknown_ops):
        vendor_name, _, op = entry.partition(": ")
        absent.setdefault(vendor_name, []).append(op)
    for vendor_name, ops in absent.items():
        yield Check(
            f"vendor {vendor_name}", State.GREEN, f"kernels for ops that this PyTorch does not have: {', '.join(ops)}"
        )  # fmt: skip
