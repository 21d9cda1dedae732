"""Triton kernels compiled for the CPU, out of PyPI's parts: Triton's front end, this package's lowering, llvmlite.

    with triton_cpu.active():
        kernel[grid](x, y, out, n, BLOCK=1024)

Files, in the order in which a kernel passes them: ``ttir`` (reads Triton's tensor IR), ``plan`` (what is kept in memory),
``lowering`` (fused loops in LLVM IR; ``emit`` writes the text, ``vector_math`` brings exp and its like), ``compiler``
(machine code), ``launcher`` and ``team`` (scratch memory and threads), ``backend``, ``driver`` and ``scope`` (what Triton sees),
``direct`` (kernels without Triton, from the cache on disk). The last but one group and ``front_end`` import Triton.
What cannot be compiled is refused with the op and the kernel's line, never computed approximately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flroute.reference_vendor.triton_cpu.devices import register_device
from flroute.reference_vendor.triton_cpu.errors import (
    LaunchError,
    TritonCpuError,
    UnsupportedKernelError,
    VersionError,
)
from flroute.reference_vendor.triton_cpu.sessions import launches_on_devices

if TYPE_CHECKING:
    from flroute.reference_vendor.triton_cpu.scope import active

__all__ = [
    "LaunchError",
    "TritonCpuError",
    "UnsupportedKernelError",
    "VersionError",
    "active",
    "launches_on_devices",
    "register_device",
]


def __getattr__(name: str) -> Any:
    """Triton takes most of a second to import, so it is imported by whoever needs it."""
    if name == "active":
        from flroute.reference_vendor.triton_cpu import scope

        return scope.active
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
