"""What kernels see: numpy arrays over host-visible memory, ``DeviceArray`` over any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.capsule import row_major
from flroute.device.dtypes import NUMPY_CARRIERS
from flroute.device.memory import DeviceArray
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.device.tensors import host_alias, upload

Lower = Callable[[torch.Tensor], Any]


def lower_for(device: Device) -> Lower:
    """How tensors on ``device`` become what its vendor's kernels receive."""
    if device.memory.host_visible:
        return numpy_view
    return lambda tensor: device_array(tensor, device)


def numpy_view(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A numpy array that aliases a host-visible tensor, which must outlive it; bfloat16 comes as uint16.

    A tensor with a lazy conj or neg bit, or an "efficient zero" that owns no memory, comes as a copy.
    """
    dtype = NUMPY_CARRIERS[tensor.dtype]
    address = tensor.data_ptr()
    if not address:
        return np.zeros(tensor.shape, dtype)
    if tensor.is_conj() or tensor.is_neg():
        return _resolved(tensor)
    if tensor.is_contiguous():
        return np.ndarray(tensor.shape, dtype, MEMORY, address - BASE)
    itemsize = dtype.itemsize
    return np.ndarray(
        tensor.shape, dtype, MEMORY, address - BASE, [itemsize * stride for stride in tensor.stride()]
    )


def _resolved(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    host = host_alias(tensor) if tensor.device.type == DEVICE_TYPE else tensor
    return host.resolve_conj().resolve_neg().contiguous().numpy()


def device_array(tensor: torch.Tensor, device: Device) -> DeviceArray:
    """What a kernel of an opaque vendor receives; a 0-dim host tensor is moved to the device first."""
    if tensor.device.type != DEVICE_TYPE:
        tensor = upload(device, tensor)
        return DeviceArray(tensor.data_ptr(), (), (), tensor.dtype, device.vendor_index, owner=tensor)
    home = device_at(tensor.device.index)
    if tensor.numel() and not tensor.data_ptr():
        tensor = upload(home, torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu"))
        return DeviceArray(
            tensor.data_ptr(),
            tuple(tensor.shape),
            row_major(tensor.shape),
            tensor.dtype,
            home.vendor_index,
            owner=tensor,
        )
    return DeviceArray(
        tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, home.vendor_index
    )


def lower_argument(value: Any, lower: Lower) -> Any:
    """An op's argument as a kernel receives it."""
    if isinstance(value, torch.Tensor):
        return lower(value)
    if isinstance(value, list | tuple):
        return [lower_argument(item, lower) for item in value]
    return value
