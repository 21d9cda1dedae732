"""The vendor API: everything a package needs to bring a chip to PyTorch.

A vendor package is a pluggy plugin in the entry-point group ``flroute``::

    # pyproject.toml
    [project.entry-points.flroute]
    acme = "flroute_acme"

    # flroute_acme/__init__.py
    from flroute.vendor import DeviceFacts, Vendor, collect_kernels, hookimpl
    from . import kernels, memory

    @hookimpl
    def flroute_vendors():
        yield Vendor(
            name="acme", version="1.0",
            devices=(DeviceFacts("Acme One", total_memory=2**33),),
            memory=memory.AcmeMemory(),
            kernels=collect_kernels(kernels, implementation="asm"),
        )

A collective of ``torch.distributed`` is an op like any other (``c10d::allreduce_``), and a vendor's own a kernel like any other,
but that it may return a function which waits until it is done; see ``docs/distributed.md``.

The reference vendor (``flroute.reference_vendor``) uses nothing but this module.
"""

from __future__ import annotations

from flroute.device.dtypes import numpy_dtype
from flroute.device.host_memory import HostMemory
from flroute.device.memory import DeviceArray, DeviceFacts, Memory
from flroute.device.pool import CachingPool
from flroute.device.streams import Streams
from flroute.device.tensors import host_address
from flroute.disk_cache import DiskCache, disk_cache, entry_key
from flroute.errors import Unsupported
from flroute.hookspecs import hookimpl
from flroute.kernels import Decomposition, Kernel, collect_kernels, kernel
from flroute.registry import Vendor
from flroute.routing.fallback import host_fallback, out_of_memory

__all__ = [
    "CachingPool",
    "Decomposition",
    "DeviceArray",
    "DeviceFacts",
    "DiskCache",
    "HostMemory",
    "Kernel",
    "Memory",
    "Streams",
    "Unsupported",
    "Vendor",
    "collect_kernels",
    "disk_cache",
    "entry_key",
    "hookimpl",
    "host_address",
    "host_fallback",
    "kernel",
    "numpy_dtype",
    "out_of_memory",
]
