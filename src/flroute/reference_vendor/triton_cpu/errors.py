"""What the compiler and the launcher raise on their own account. Each names the kernel's line where there is one."""

from __future__ import annotations


class TritonCpuError(RuntimeError):
    """The root of this package's errors."""


class UnsupportedKernelError(TritonCpuError, NotImplementedError):
    """A kernel uses something this compiler does not lower; raised when it is compiled, before anything runs."""

    def __init__(self, op: str, why: str, location: str, kernel: str = "") -> None:
        self.op, self.why, self.location, self.kernel = op, why, location, kernel
        of = f"kernel {kernel}: " if kernel else ""
        super().__init__(f"Triton on the CPU: {of}{op} at {location or 'an unknown line'}: {why}")


class LaunchError(TritonCpuError, ValueError):
    """A launch with a grid or arguments that the kernel cannot take; nothing ran."""


class VersionError(TritonCpuError, ImportError):
    """The installed Triton's text format is not one that this compiler was tested with."""
