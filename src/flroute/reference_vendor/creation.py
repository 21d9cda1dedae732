"""New tensors like another one: its shape, and its dtype unless told otherwise. Its elements are not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import NUMPY_TYPES, Array, check_scalars
from flroute.vendor import kernel, numpy_dtype


def _here(x: torch.Tensor, *_: Any, **asked: Any) -> bool | str:
    """Nothing but another dtype is asked for; a memory format is flroute's business."""
    if asked.get("device") not in (None, x.device) or asked.get("layout") not in (None, torch.strided):
        return "on another device, or of another layout"
    dtype = asked.get("dtype") or x.dtype
    return True if dtype in NUMPY_TYPES else f"numpy has no {dtype}"


def _dtype(x: Array, asked: torch.dtype | None) -> np.dtype[Any]:
    return x.dtype if asked is None else numpy_dtype(asked)


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
    return np.zeros(x.shape, _dtype(x, dtype))


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
    return np.ones(x.shape, _dtype(x, dtype))


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
    return np.full(x.shape, fill_value, result)
