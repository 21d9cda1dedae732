"""float16 and bfloat16: every kernel of this package, computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.casting import from_bfloat16, to_bfloat16
from flroute.reference_vendor.support import Array, Result, quiet
from flroute.vendor import Kernel, Unsupported

HALVES = (torch.float16, torch.bfloat16)

_BFLOAT16 = np.dtype(np.uint16)
"""numpy has no bfloat16: flroute hands a kernel that names it the bits."""
_CARRIERS = (np.dtype(np.float16), _BFLOAT16)


_WRITTEN = {
    "aten::native_batch_norm": (3, 4),
    "aten::_native_batch_norm_legit": (3, 4),
    "aten::_batch_norm_with_update": (3, 4),
    "aten::_cummax_helper": (1,),
    "aten::_cummin_helper": (1,),
}
"""Positions of arguments that an op writes to although its name does not end in an underscore."""

_LEFT_TO_HOST = frozenset({"aten::complex", "aten::polar", "aten::linalg_matrix_exp"})
"""The first two make complex32, and the host's powers of a matrix overflow, which nobody wants to imitate."""


def widened(x: Array) -> Array:
    """The same values in float32.

    Example:
        >>> import numpy as np
        >>> widened(np.array([0x3FC0], np.uint16)).tolist()
        [1.5]
    """
    return from_bfloat16(x) if x.dtype == _BFLOAT16 else x.astype(np.float32)


def rounded_to(half: np.dtype[Any], x: Result) -> Result:
    """float32 values, rounded to the nearest of ``half``; to the even one of two.

    Example:
        >>> import numpy as np
        >>> [hex(bits) for bits in rounded_to(np.dtype(np.uint16), np.array([1.5, np.nan], np.float32))]
        ['0x3fc0', '0x7fc0']
    """
    return to_bfloat16(np.asarray(x)) if half == _BFLOAT16 else x.astype(half)


def in_float32(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """For each kernel that computes in float32, one that serves float16 and bfloat16 with it; unless the op has its own."""
    kernels = tuple(kernels)
    served = {kernel.op for kernel in kernels if set(HALVES) & set(kernel.dtypes)}
    for kernel in kernels:
        if torch.float32 not in kernel.dtypes or kernel.when is not None or kernel.op in served:
            continue
        if kernel.op.partition(".")[0] in _LEFT_TO_HOST:
            continue
        beside = [dtype for dtype in kernel.dtypes if kernel.mixed and not dtype.is_floating_point]
        yield replace(kernel, function=_lifted(kernel), dtypes=(*HALVES, *beside))


def _lifted(kernel: Kernel) -> Callable[..., Any]:
    function = kernel.function
    written = (0,) if kernel.op.partition(".")[0].endswith("_") else _WRITTEN.get(kernel.op, ())

    @wraps(function)
    @quiet
    def compute(*args: Any, **kwargs: Any) -> Any:
        half = _half_among(args)
        if len(args) <= max(written, default=-1):
            raise Unsupported("an argument to write that is passed by name")
        asked = kwargs.get("dtype")
        inputs = [_wide(value) for value in args]
        answer = function(*inputs, **{name: _wide(value) for name, value in kwargs.items()})
        for position in written:
            if args[position] is not None:
                _write(half, args[position], inputs[position])
        return answer if asked is not None and asked not in HALVES else _narrow(half, answer)

    compute.__name__ = f"{function.__name__}_in_float32"
    return compute


def _half_among(values: Iterable[Any]) -> np.dtype[Any]:
    for value in values:
        found = value[0] if isinstance(value, list) and value else value
        if isinstance(found, np.ndarray) and found.dtype in _CARRIERS:
            half: np.dtype[Any] = found.dtype
            return half
    raise Unsupported("no tensor of half precision among the arguments")


def _wide(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return widened(value) if value.dtype in _CARRIERS else value
    if isinstance(value, list):
        return [_wide(item) for item in value]
    return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value


def _narrow(half: np.dtype[Any], value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype == np.float32:
        return rounded_to(half, value)
    if isinstance(value, list | tuple):
        return type(value)(_narrow(half, item) for item in value)
    return value


def _write(half: np.dtype[Any], targets: Any, computed: Any) -> None:
    if isinstance(targets, list):
        for target, values in zip(targets, computed, strict=True):
            np.copyto(target, rounded_to(half, values))
    else:
        np.copyto(targets, rounded_to(half, computed))
