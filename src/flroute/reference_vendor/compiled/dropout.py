"""The gradient of dropout in one pass. Of dropout itself, drawing is most of the work, and the host's."""

from __future__ import annotations

from typing import Any

import torch

from flroute.reference_vendor.compiled.launch import Array, Source, ceil_div, compiled_kernel
from flroute.reference_vendor.memory import empty
from flroute.reference_vendor.support import FLOAT_TYPES

BLOCK = 4096
_SOURCE = Source("pointwise", "common")


def _of_a_mask(gradient: Any, mask: Any, scale: float) -> bool | str:
    fits = mask.dtype is torch.bool and gradient.dtype in FLOAT_TYPES and gradient.shape == mask.shape
    return fits or f"a gradient of {gradient.dtype} for a mask of {mask.dtype}"


@compiled_kernel(
    "aten::native_dropout_backward",
    size="dropout_backward",
    dtypes=("float32", "float64", "bool"),
    when=_of_a_mask,
    mixed=True,
)
def dropout_backward(gradient: Array, mask: Array, scale: float) -> Array:
    out = empty(gradient.shape, gradient.dtype)
    _SOURCE.launch(
        "masked_scale", ceil_div(out.size, BLOCK), gradient, mask, out, float(scale), out.size, BLOCK=BLOCK
    )
    return out
