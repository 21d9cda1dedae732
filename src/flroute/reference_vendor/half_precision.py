"""float16 and bfloat16: every kernel of this package, computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import wraps
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from flroute.reference_vendor.casting import from_bfloat16, from_float16, to_bfloat16
from flroute.reference_vendor.promotion import result_type
from flroute.reference_vendor.support import EVERY, Array, Result, quiet
from flroute.vendor import Kernel, Unsupported

HALVES = (torch.float16, torch.bfloat16)

_BFLOAT16 = np.dtype(np.uint16)
"""numpy has no bfloat16: flroute hands a kernel that names it the bits."""
_CARRIER_OF = {torch.float16: np.dtype(np.float16), torch.bfloat16: _BFLOAT16}
_CARRIERS = tuple(_CARRIER_OF.values())
_EVERY = tuple(getattr(torch, name) for name in EVERY)


_WRITTEN = {
    "aten::native_batch_norm": (3, 4),
    "aten::_native_batch_norm_legit": (3, 4),
    "aten::_batch_norm_with_update": (3, 4),
    "aten::_cummax_helper": (1,),
    "aten::_cummin_helper": (1,),
    "aten::_fused_adam_": (0, 1, 2, 3, 4),
    "aten::_fused_adam_.tensor_lr": (0, 1, 2, 3, 4),
    "aten::_fused_adamw_": (0, 1, 2, 3, 4),
    "aten::_fused_adamw_.tensor_lr": (0, 1, 2, 3, 4),
    "aten::_fused_sgd_": (0, 1, 2),
    "aten::_fused_sgd_.tensor_lr": (0, 1, 2),
    "aten::_fused_adagrad_": (0, 1, 2),
}
"""Positions of arguments that an op writes to; of others whose name ends in an underscore it is the first."""

_LEFT_TO_HOST = frozenset({
    "aten::complex", "aten::polar",  # make complex32
    "aten::linalg_matrix_exp", "aten::_segment_reduce_backward",  # the host's products overflow, which nobody wants to imitate
    "aten::nextafter", "aten::nan_to_num",  # depend on what numbers a dtype has
    "aten::linalg_lstsq", "aten::_int_mm",  # the host refuses them
    "aten::fake_quantize_per_tensor_affine_cachemask", "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::rrelu_with_noise", "aten::rrelu_with_noise_",  # write two tensors
})  # fmt: skip

_ROUNDS_NUMBERS = frozenset(
    f"aten::{op}" for op in ("add", "sub", "rsub", "eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder")
)
"""Where PyTorch rounds a number to the dtype of the tensor it meets, and not to do so may make more than a rounding error."""

_KEEPS_NUMBERS = frozenset({"aten::mul", "aten::div", "aten::floor_divide", "aten::cat"})
"""Where PyTorch does not round what has no dimensions, not even a tensor of another dtype; to join, it names a dimension."""


def widened(x: Array) -> Array:
    """The same values in float32.

    Example:
        >>> import numpy as np
        >>> widened(np.array([0x3FC0], np.uint16)).tolist()
        [1.5]
    """
    return from_bfloat16(x) if x.dtype == _BFLOAT16 else from_float16(x)


def rounded_to(half: np.dtype[Any], x: Result) -> Result:
    """float32 values, rounded to the nearest of ``half``; to the even one of two.

    Example:
        >>> import numpy as np
        >>> [hex(bits) for bits in rounded_to(np.dtype(np.uint16), np.array([1.5, np.nan], np.float32))]
        ['0x3fc0', '0x7fc0']
    """
    return to_bfloat16(np.asarray(x)) if half == _BFLOAT16 else x.astype(half)


def in_float32(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """For each kernel that computes in float32, one that serves float16 and bfloat16 with it; unless the op has one for it."""
    kernels = tuple(kernels)
    served = {(kernel.op, half) for kernel in kernels for half in HALVES if half in kernel.dtypes}
    for kernel in kernels:
        halves = tuple(half for half in HALVES if (kernel.op, half) not in served)
        if _base(kernel) in _LEFT_TO_HOST:
            continue
        if promotes(kernel):
            yield replace(kernel, function=_lifted_promoting(kernel), dtypes=_EVERY, mixed=True)
        elif halves and (not kernel.dtypes or torch.float32 in kernel.dtypes):
            mixed = kernel.mixed or not kernel.dtypes
            beside = [
                d
                for d in kernel.dtypes or _EVERY
                if not (d.is_floating_point or d.is_complex or d is torch.uint16)
            ]
            yield replace(
                kernel,
                function=_lifted(kernel),
                dtypes=(*halves, *beside) if mixed else halves,
                mixed=mixed,
                when=kernel.when and _seen_in_float32(kernel.when),
            )


def promotes(kernel: Kernel) -> bool:
    """Whether it takes operands of several dtypes and promotes them itself."""
    return not kernel.dtypes and kernel.when is None


def _base(kernel: Kernel) -> str:
    return kernel.op.partition(".")[0]


class _InFloat32:
    """A tensor of half precision as the predicate of a kernel sees it."""

    dtype = torch.float32

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def _seen_in_float32(when: Callable[..., bool | str]) -> Callable[..., bool | str]:
    def seen(value: Any) -> Any:
        return _InFloat32(value) if getattr(value, "dtype", None) in HALVES else value

    def in_half(*args: Any, **kwargs: Any) -> bool | str:
        return when(*map(seen, args), **{name: seen(value) for name, value in kwargs.items()})

    return in_half


def _lifted(kernel: Kernel) -> Callable[..., Any]:
    function, rounds_numbers = kernel.function, _base(kernel) in _ROUNDS_NUMBERS
    written = _WRITTEN.get(kernel.op, (0,) if _base(kernel).endswith("_") else ())

    @wraps(function)
    @quiet
    def compute(*args: Any, **kwargs: Any) -> Any:
        half = _half_among(args)
        if len(args) <= max(written, default=-1):
            raise Unsupported("an argument to write that is passed by name")
        asked = kwargs.get("dtype") or next((x for x in args if isinstance(x, torch.dtype)), None)
        inputs = [_operand(half, x) if rounds_numbers and _is_number(x) else _wide(x) for x in args]
        answer = function(*inputs, **{name: _wide(value) for name, value in kwargs.items()})
        for position in written:
            if args[position] is not None:
                _write(half, args[position], inputs[position])
        if asked is None:
            return _narrow(half, answer)
        return _narrow(_CARRIER_OF[asked], answer) if asked in HALVES else answer

    compute.__name__ = f"{function.__name__}_in_float32"
    return (
        _one_after_the_other(compute) if _base(kernel).startswith("aten::_foreach_") and written else compute
    )


def _one_after_the_other(compute: Callable[..., Any]) -> Callable[..., Any]:
    """For lists that share memory: what is written for one tensor is what the next one reads."""

    @wraps(compute)
    def on_lists(*args: Any, **kwargs: Any) -> None:
        if not _share_memory([value for value in args if _is_of_arrays(value)]):
            compute(*args, **kwargs)
            return
        for at in range(len(args[0])):
            compute(
                *(value[at : at + 1] if isinstance(value, list | tuple) else value for value in args),
                **kwargs,
            )

    return on_lists


def _is_of_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], np.ndarray)


def _share_memory(lists: list[list[Array]]) -> bool:
    """Whether an array shares memory with one at another place in the lists."""
    spans = sorted({(*byte_bounds(x), at) for arrays in lists for at, x in enumerate(arrays) if x.size})
    ends = accumulate((end for _, end, _ in spans), max)
    return any(start < end for (start, _, _), end in zip(spans[1:], ends, strict=False))


def _lifted_promoting(kernel: Kernel) -> Callable[..., Any]:
    """Operands of several dtypes become one of half precision first, if that is what PyTorch promotes them to."""
    function, keeps_numbers = kernel.function, _base(kernel) in _KEEPS_NUMBERS

    @wraps(function)
    @quiet
    def compute(*args: Any, **kwargs: Any) -> Any:
        numbers = [x for x in args if _is_number(x)]
        arrays = list(_arrays_in((*args, *kwargs.values())))
        dtype = result_type(*arrays, *numbers, bits_of_bfloat16=True)
        if dtype is torch.complex32 or not any(x.dtype in _CARRIERS for x in arrays):
            raise Unsupported(f"a result of {dtype} in float32")
        half = _CARRIER_OF.get(dtype)

        def operand(x: Any) -> Any:
            if isinstance(x, list):
                return [operand(item) for item in x]
            if half is None or (keeps_numbers and not np.ndim(x)):
                return _wide(x)
            return _operand(half, x) if _is_number(x) or isinstance(x, np.ndarray) else x

        named = {
            name: _wide(value) if _is_number(value) else operand(value) for name, value in kwargs.items()
        }
        answer = function(*map(operand, args), **named)
        return answer if half is None else _narrow(half, answer)

    compute.__name__ = f"{function.__name__}_in_float32"
    return compute


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _operand(half: np.dtype[Any], value: Any) -> Any:
    """A number or an array, rounded to half precision; in float32. A condition stays as it is."""
    if isinstance(value, np.ndarray):
        if value.dtype == half or value.dtype.kind == "b":
            return _wide(value)
        value = _wide(value)
    return widened(np.asarray(rounded_to(half, np.asarray(value, np.float32))))


def _arrays_in(values: Iterable[Any]) -> Iterator[Array]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list):
            yield from _arrays_in(value)


def _half_among(values: Iterable[Any]) -> np.dtype[Any]:
    found = {array.dtype for array in _arrays_in(values)}
    halves = [half for half in _CARRIERS if half in found]
    if len(halves) != 1:
        raise Unsupported("tensors of both half precisions, or of none, among the arguments")
    return halves[0]


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
