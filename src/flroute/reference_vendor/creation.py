"""New tensors: like another one, whose elements are not read, or from a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import NUMPY_TYPES, Array, Result, check_scalars, quiet
from flroute.vendor import Unsupported, kernel, numpy_dtype


def _here(x: torch.Tensor, *_: Any, **asked: Any) -> bool | str:
    """Nothing but another dtype is asked for; a memory format is flroute's business."""
    if asked.get("device") not in (None, x.device) or asked.get("layout") not in (None, torch.strided):
        return "on another device, or of another layout"
    dtype = asked.get("dtype") or x.dtype
    return True if dtype in NUMPY_TYPES else f"numpy has no {dtype}"


def _dtype(x: Array, asked: torch.dtype | None) -> np.dtype[Any]:
    return x.dtype if asked is None else numpy_dtype(asked)


def _full(shape: tuple[int, ...], value: Any, dtype: np.dtype[Any]) -> Array:
    made = empty(shape, dtype)
    made.fill(value)
    return made


@kernel("aten::zeros_like", when=_here)
def zeros_like(
    x: Array,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Array:
    return _full(x.shape, 0, _dtype(x, dtype))


@kernel("aten::ones_like", when=_here)
def ones_like(
    x: Array,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Array:
    return _full(x.shape, 1, _dtype(x, dtype))


@kernel("aten::full_like", when=_here)
def full_like(
    x: Array,
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Array:
    result = _dtype(x, dtype)
    check_scalars(result, fill_value)
    return _full(x.shape, fill_value, result)


# -- from a few numbers -------------------------------------------------------------------------------


def _from_numbers(*_: Any, dtype: torch.dtype | None = None, layout: Any = None, **__: Any) -> bool | str:
    if layout not in (None, torch.strided):
        return "of another layout"
    return True if dtype is None or dtype in NUMPY_TYPES else f"numpy has no {dtype}"


def _asked(dtype: torch.dtype | None, default: torch.dtype | None = None) -> np.dtype[Any]:
    """The dtype of the result; an ``out=`` names it after the predicate was asked."""
    wanted = dtype or default or torch.get_default_dtype()
    if wanted not in NUMPY_TYPES:
        raise Unsupported(f"numpy has no {wanted}")
    return numpy_dtype(wanted)


def _progression(count: int, start: Any, step: Any, dtype: np.dtype[Any]) -> Result:
    numbers = np.arange(count, dtype=np.int64 if dtype.kind in "iu" else np.float64)
    return (numbers * step + start).astype(dtype)


@kernel("aten::arange.start_step", when=_from_numbers)
@quiet
def arange(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Result:
    numbers = (start, end, step)
    if step == 0 or (end - start) / step < 0 or not all(np.isfinite(number) for number in numbers):
        raise Unsupported(f"no progression from {start} to {end} in steps of {step}")
    whole = all(isinstance(number, int) for number in numbers)
    count = -(-(end - start) // step) if whole else math.ceil((end - start) / step)
    result = _asked(dtype, torch.int64 if whole else None)
    if result.kind not in ("iu" if whole else "") + "f":
        raise Unsupported(f"steps of {step} in {result}")
    return _progression(int(count), start, step, result)


@kernel("aten::linspace", when=_from_numbers)
@quiet
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    """From both ends towards the middle, as PyTorch does: the last element is ``end`` itself."""
    result = _asked(dtype)
    if result.kind != "f" or steps < 0 or isinstance(start, complex) or isinstance(end, complex):
        raise Unsupported(f"linspace of {steps} steps of {result}")
    if steps == 1:
        return np.full(1, start, result)
    step, first = (end - start) / max(steps - 1, 1), np.arange(steps // 2)
    last = np.arange(steps - steps // 2 - 1, -1, -1)
    return np.concatenate([start + step * first, end - step * last]).astype(result)


@kernel("aten::logspace", when=_from_numbers)
@quiet
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    """Powers of ``base``, whose exponents are at equal distances."""
    result = _asked(dtype)
    if result.kind != "f":
        raise Unsupported(f"powers of {base} in {result}")
    return np.power(np.float64(base), linspace(start, end, steps, dtype=torch.float64)).astype(result)


@kernel("aten::range.step", when=_from_numbers)
@quiet
def closed_range(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Result:
    """PyTorch's older ``arange``, to which ``end`` itself belongs."""
    result = _asked(dtype)
    if step == 0 or (end - start) / step < 0 or not all(np.isfinite(number) for number in (start, end, step)):
        raise Unsupported(f"no progression from {start} to {end} in steps of {step}")
    if result.kind != "f":
        raise Unsupported(f"a closed range in {result}")
    return _progression(int((end - start) / step) + 1, start, step, result)


_INT64 = 4
"""How a schema writes ``torch.int64`` where it is a default."""


def _triangle(find: Callable[..., Any], row: int, col: int, offset: int, dtype: Any) -> Array:
    if row < 0 or col < 0:
        raise Unsupported(f"a triangle of {row} x {col}")
    return np.stack(find(row, offset, col)).astype(_asked(None if dtype == _INT64 else dtype, torch.int64))


@kernel("aten::tril_indices", when=_from_numbers)
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: Any = _INT64,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    """Rows and columns of the lower triangle, row by row."""
    return _triangle(np.tril_indices, row, col, offset, dtype)


@kernel("aten::triu_indices", when=_from_numbers)
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: Any = _INT64,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    """Rows and columns of the upper triangle, row by row."""
    return _triangle(np.triu_indices, row, col, offset, dtype)


@kernel("aten::eye.m", when=_from_numbers)
def eye(
    n: int,
    m: int,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    if n < 0 or m < 0:
        raise Unsupported(f"a matrix of {n} x {m}")
    return np.eye(n, m, dtype=_asked(dtype))


@kernel("aten::eye", when=_from_numbers)
def eye_square(
    n: int,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    return eye(n, n, dtype=dtype)


@kernel("aten::_efficientzerotensor", when=_from_numbers)
def efficient_zero(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Array:
    """The zeros that stand for a gradient nobody has; on the host they own no memory."""
    return np.zeros(size, _asked(dtype))
