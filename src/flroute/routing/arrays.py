"""What kernels see: numpy arrays over host-visible memory, ``DeviceArray`` over any other."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import Any

import numpy as np
import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.capsule import row_major
from flroute.device.dtypes import NUMPY_CARRIERS
from flroute.device.memory import DeviceArray
from flroute.device.table import DEVICE_TYPE, Device, device_at
from flroute.device.tensors import host_alias, upload
from flroute.errors import KernelResultError

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


def refusing_kept(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A kernel that may not keep an array it is given: once the tensor dies, the memory under the array is another's.

    Where results may be views of an argument nothing is said: they are copied, and hold the array meanwhile.

    Args:
        function: the kernel.
        name: its full name.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = [*_arrays_in(args), *_arrays_in(kwargs.values())]
        before = list(map(getrefcount, arrays))
        answer = function(*args, **kwargs)
        if list(map(getrefcount, arrays)) == before:
            return answer
        results = list(_arrays_in([answer]))
        if any(np.may_share_memory(result, array) for result in results for array in arrays):
            return answer
        gc.collect()  # a cycle among what the kernel left behind is no crime
        kept = [after > count for after, count in zip(map(getrefcount, arrays), before, strict=True)]
        if True in kept:
            array = arrays[kept.index(True)]
            raise KernelResultError(
                f"kernel {name} keeps an array it was given: {array.dtype} of shape {array.shape}. Once the tensor dies its "
                f"memory goes to others, and the array would show their values. Keep array.copy() instead."
            )
        return answer

    return run


def _arrays_in(values: Any) -> Iterator[np.ndarray[Any, Any]]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list | tuple):
            yield from _arrays_in(value)


def as_tensor(value: Any) -> torch.Tensor:
    """A number, which graphs have where an op takes a tensor, as the tensor that PyTorch makes of it beneath a mode."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))
