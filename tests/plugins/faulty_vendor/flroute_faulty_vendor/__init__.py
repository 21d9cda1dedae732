"""A copy of the reference vendor with numeric faults that are known: what finds faults is tried on it.

``FAULTY_VENDOR=wrong_epsilon,stale_running_mean`` says which are planted when the package is installed; a test plants its own::

    registry.register(flroute_faulty_vendor.plugin("wrong_epsilon"), "faulty")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from flroute.reference_vendor import triton_cpu
from flroute.reference_vendor.memory import MEMORY
from flroute.vendor import DeviceFacts, Vendor, hookimpl
from flroute_faulty_vendor.faults import FAULTS, Fault
from flroute_faulty_vendor.planting import kernels

__version__ = "1.0"
__all__ = ["FAULTS", "Fault", "Plugin", "flroute_vendors", "plugin"]

VARIABLE = "FAULTY_VENDOR"


class Plugin:
    """The vendor ``faulty`` with some faults planted."""

    def __init__(self, *faults: str) -> None:
        self._vendor = Vendor(
            name="faulty",
            version=__version__,
            devices=(DeviceFacts("Faulty (host CPU)", total_memory=2**40),),
            memory=MEMORY,
            kernels=kernels([FAULTS[name] for name in faults]),
        )

    @hookimpl
    def flroute_vendors(self) -> Iterator[Vendor]:
        """One vendor with one device."""
        yield self._vendor

    @hookimpl
    def flroute_session(self, device: str) -> AbstractContextManager[None] | None:
        """As for the reference vendor: Triton's kernels take tensors on the device."""
        return triton_cpu.launches_on_devices() if device.partition(":")[0] == "faulty" else None


def plugin(*faults: str) -> Plugin:
    """A plugin for ``flroute.registry.register``, with these of ``FAULTS`` planted; with none it is the reference vendor."""
    return Plugin(*faults)


@hookimpl
def flroute_vendors() -> Iterator[Vendor]:
    """For the entry point: the faults that the environment names."""
    yield from Plugin(*filter(None, os.environ.get(VARIABLE, "").split(","))).flroute_vendors()
