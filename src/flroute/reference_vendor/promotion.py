"""PyTorch's type promotion, for kernels that take tensors of several dtypes.

Tensors with dimensions decide first, then those without, then Python numbers; a later group counts only if it is of a higher
kind (bool, integer, floating, complex). Within a group ``torch.promote_types`` holds.
https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import NUMPY_TYPES, F
from flroute.vendor import Unsupported, kernel, numpy_dtype

_TORCH_TYPES = {numpy_dtype(dtype): dtype for dtype in NUMPY_TYPES}
_BFLOAT16 = np.dtype(np.uint16)


def promoting(*ops: str, dtypes: Iterable[str]) -> Callable[[F], F]:
    """Mark the kernel of ``dtypes`` also as the one for operands of different dtypes, which it promotes itself.

    Two kernels of one op need two names: the second is called ``add_mixed`` where the first is ``add``.
    """

    def mark(function: F) -> F:
        kernel(*ops, dtypes=dtypes)(function)

        @wraps(function)  # with it come the marks the function has so far
        def mixed(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        mixed.__name__ = f"{function.__name__}_mixed"
        kernel(*ops)(mixed)
        vars(function).update({name: mark for name, mark in vars(mixed).items() if name != "__wrapped__"})
        return function

    return mark


def _dtype_of(operand: Any, bits_of_bfloat16: bool) -> torch.dtype:
    if isinstance(operand, np.ndarray):
        if bits_of_bfloat16 and operand.dtype == _BFLOAT16:
            return torch.bfloat16
        if operand.dtype not in _TORCH_TYPES:
            raise Unsupported(f"an operand of {operand.dtype}")
        found: torch.dtype = _TORCH_TYPES[operand.dtype]
        return found
    if isinstance(operand, bool):
        return torch.bool
    if isinstance(operand, int):
        return torch.int64
    default = torch.get_default_dtype()
    return default if isinstance(operand, float) else default.to_complex()


def _kind(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if _kind(lower) <= _kind(higher):
        return higher
    if lower.is_complex and higher.is_floating_point:
        return higher.to_complex()
    return torch.promote_types(higher, lower)


def result_type(*operands: Any, bits_of_bfloat16: bool = False) -> torch.dtype:
    """``torch.result_type`` of any number of arrays and Python numbers.

    Args:
        operands: the arrays and numbers.
        bits_of_bfloat16: what an array of uint16 is, if the caller named bfloat16 and not uint16 among its dtypes.

    Raises:
        Unsupported: an array of a dtype that PyTorch promotes to no other, uint16 for one.
    """
    groups: list[torch.dtype | None] = [None, None, None]  # with dimensions, without, numbers
    for operand in operands:
        group = 2 if not isinstance(operand, np.ndarray) else 0 if operand.ndim else 1
        dtype, seen = _dtype_of(operand, bits_of_bfloat16), groups[group]
        groups[group] = dtype if seen is None else torch.promote_types(seen, dtype)
    combined = _combined(_combined(groups[0], groups[1]), groups[2])
    if combined is None:
        raise TypeError("result_type() needs at least one operand")
    return combined


def promoted(*operands: Any, floats: bool = False, complex_too: bool = False) -> list[Any]:
    """The operands as arrays of the dtype PyTorch computes in; with ``floats``, the default dtype for integers and bool.

    Raises:
        Unsupported: the dtype is float16, or complex without ``complex_too``, or a number does not fit into it.
    """
    first = operands[0]
    if all(isinstance(o, np.ndarray) and o.dtype == first.dtype for o in operands) and (
        first.dtype.kind in ("f" if floats else "fiub") and first.dtype.char != "e"
    ):
        return list(operands)
    dtype = result_type(*operands)
    if floats and _kind(dtype) < 2:
        dtype = torch.get_default_dtype()
    if dtype is torch.float16 or (dtype.is_complex and not complex_too):
        raise Unsupported(f"a result of {dtype}")
    target = numpy_dtype(dtype)
    return [_converted(operand, target) for operand in operands]


def _converted(operand: Any, target: np.dtype[Any]) -> Any:
    if isinstance(operand, np.ndarray):
        return operand.astype(target, copy=False)
    if target.kind in "iu" and not np.iinfo(target).min <= operand <= np.iinfo(target).max:
        raise Unsupported(f"the number {operand} with a tensor of {target}")
    with np.errstate(all="ignore"):  # a number too large for float32 becomes infinite
        return np.asarray(operand, dtype=target)
