"""A flroute vendor with two devices whose memory faults when the host touches it."""

from __future__ import annotations

from collections.abc import Iterator

from flroute.vendor import DeviceFacts, Vendor, collect_kernels, hookimpl
from flroute_opaque_vendor import kernels
from flroute_opaque_vendor.memory import MEMORY

__version__ = "1.0"


@hookimpl
def flroute_vendors() -> Iterator[Vendor]:
    """One vendor; its devices are ``opaque:0`` and ``opaque:1``."""
    yield Vendor(
        name="opaque",
        version=__version__,
        devices=(DeviceFacts("Opaque One", total_memory=MEMORY.capacity, bfloat16=False),) * MEMORY.devices,
        memory=MEMORY,
        kernels=collect_kernels(kernels, implementation="window"),
    )
