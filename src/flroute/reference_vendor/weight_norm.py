"""Weight normalization (Salimans and Kingma, 2016): ``w = g v / |v|``, with a length ``g`` for each slice of ``v``."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.half_precision import rounded_to, widened
from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import FLOATS, Array, narrow, quiet, wide
from flroute.vendor import Unsupported, kernel

HALVES = ("float16", "bfloat16")


def _inside_slices(v: Array, dim: int) -> tuple[int, ...]:
    """The dimensions a norm runs over: all but ``dim``, which PyTorch's own kernel wants to be the first or last."""
    if not v.ndim or dim not in {0, v.ndim - 1}:
        raise Unsupported(f"weight norm of shape {v.shape} with dim={dim}")
    return tuple(other for other in range(v.ndim) if other != dim)


@kernel("aten::_weight_norm_interface", dtypes=FLOATS)
@quiet
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Any, Any]:
    norms = np.sqrt(accurate_sum(np.square(wide(v)), _inside_slices(v, dim), True))
    return narrow(v * (g / norms), v), narrow(norms, v).reshape(g.shape)


@kernel("aten::_weight_norm_interface_backward", dtypes=FLOATS)
@quiet
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Any, Any]:
    """``dg = <dw, v> / |v|`` and ``dv = g / |v| (dw - v <dw, v> / |v|^2)``, the products over each slice."""
    inside = _inside_slices(saved_v, dim)
    norms = wide(saved_norms)
    along = accurate_sum(wide(grad_w) * saved_v, inside, True) / norms
    for_v = saved_g / norms * (grad_w - saved_v * (along / norms))
    return narrow(for_v, saved_v), narrow(along, saved_g)


@kernel("aten::_weight_norm_interface", dtypes=HALVES)
def weight_norm_in_float32(v: Array, g: Array, dim: int = 0) -> tuple[Any, Any]:
    """The norms stay in float32, as backward wants them."""
    w, norms = weight_norm(widened(v), widened(g), dim)
    return rounded_to(v.dtype, w), norms


@kernel("aten::_weight_norm_interface_backward", dtypes=(*HALVES, "float32"), mixed=True)
def weight_norm_backward_in_float32(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Any, Any]:
    half = saved_v.dtype
    if saved_norms.dtype != np.float32 or grad_w.dtype != half or saved_g.dtype != half:
        raise Unsupported("weight norm of several dtypes")
    gradients = weight_norm_backward(widened(grad_w), widened(saved_v), widened(saved_g), saved_norms, dim)
    return rounded_to(half, gradients[0]), rounded_to(half, gradients[1])
