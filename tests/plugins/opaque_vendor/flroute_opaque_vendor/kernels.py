"""Five kernels. Each receives a ``DeviceArray`` for a tensor: an address, sizes and strides, no elements.

A result is a new ``DeviceArray`` over a block that the kernel allocated. flroute takes the block over and gives it
back through ``OpaqueMemory.free`` when the last tensor on it dies.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from flroute.vendor import DeviceArray, Unsupported, kernel
from flroute_opaque_vendor.memory import FLOAT32, MEMORY

LARGEST = float(np.finfo(np.float32).max)
Elements = np.ndarray[Any, np.dtype[np.float32]]
Operand = DeviceArray | float  # in x + 2 the second operand is the number the user wrote


@kernel("aten::add.Tensor", dtypes=("float32",))
def add(a: Operand, b: Operand, *, alpha: float = 1) -> DeviceArray:
    """``a + alpha * b``."""
    left, right, factor = elements(a), elements(b), float32(alpha)
    result, out = new_array(device_of(a, b), broadcast_shape(left, right))
    np.multiply(right, factor, out=out)
    np.add(left, out, out=out)
    return result


@kernel("aten::mul.Tensor", dtypes=("float32",))
def multiply(a: Operand, b: Operand) -> DeviceArray:
    """``a * b``."""
    left, right = elements(a), elements(b)
    result, out = new_array(device_of(a, b), broadcast_shape(left, right))
    np.multiply(left, right, out=out)
    return result


@kernel("aten::mm", dtypes=("float32",))
def matrix_multiply(a: DeviceArray, b: DeviceArray) -> DeviceArray:
    """The product of two matrices."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise Unsupported(f"shapes {a.shape} and {b.shape} are not those of a matrix product")
    result, out = new_array(a.device, (a.shape[0], b.shape[1]))
    np.matmul(elements(a), elements(b), out=out)
    return result


@kernel("aten::relu", dtypes=("float32",))
def relu(a: DeviceArray) -> DeviceArray:
    """The larger of ``a`` and zero; NaN stays NaN."""
    result, out = new_array(a.device, a.shape)
    np.maximum(elements(a), 0, out=out)
    return result


@kernel("aten::fill_.Scalar", dtypes=("float32",))
def fill(a: DeviceArray, value: float) -> None:
    """Write ``value`` everywhere; an op that only exists in place writes to its argument."""
    elements(a)[...] = float32(value)


def new_array(device: int, shape: tuple[int, ...]) -> tuple[DeviceArray, Elements]:
    """A row-major array on a device, and its elements."""
    strides = tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))
    address = MEMORY.allocate(device, max(math.prod(shape) * FLOAT32.itemsize, 1))
    array = DeviceArray(address, shape, strides, torch.float32, device)
    return array, elements(array)


def elements(operand: Operand) -> Elements:
    """What the chip's own cores would see of an operand."""
    if isinstance(operand, DeviceArray):
        return MEMORY.window(operand)
    return np.asarray(float32(operand))


def device_of(*operands: Operand) -> int:
    """Where the operands are; flroute has checked that they are on one device."""
    return next(operand.device for operand in operands if isinstance(operand, DeviceArray))


def broadcast_shape(a: Elements, b: Elements) -> tuple[int, ...]:
    """The shape of an elementwise result."""
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def float32(value: float) -> np.float32:
    """A number that float32 can hold; for others the host does what PyTorch does."""
    if isinstance(value, complex) or (math.isfinite(value) and abs(value) > LARGEST):
        raise Unsupported(f"{value} does not fit float32")
    return np.float32(value)
