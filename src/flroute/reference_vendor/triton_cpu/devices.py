"""Which devices' tensors a kernel may take, and where this CPU sees their memory. Imports neither Triton nor torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Address = Callable[[Any], int]
ADDRESS: dict[str, Address] = {"cpu": lambda tensor: int(tensor.data_ptr())}


def register_device(device_type: str, address: Address) -> None:
    """Let kernels take tensors of a device type; ``address`` gives where the CPU sees a tensor's memory, or raises."""
    ADDRESS[device_type] = address
