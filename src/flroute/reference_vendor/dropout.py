"""Dropout: which elements stay is drawn from the host's generator, as the host's own dropout draws."""

from __future__ import annotations

import numpy as np
import torch

from flroute.reference_vendor.support import FLOAT_TYPES, FLOATS, Array, Result, quiet
from flroute.vendor import Unsupported, kernel


@kernel("aten::native_dropout", dtypes=FLOATS)
@quiet
def dropout_from_host_generator(x: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if not 0 <= p <= 1:
        raise Unsupported(f"a dropout probability of {p}")
    if train is False:
        return x.copy(), np.ones(x.shape, np.bool_)
    if x.size == 0:  # as the host has it: a mask in the dtype of the input
        return x.copy(), x.copy()
    drawn = torch.empty_like(torch.from_numpy(x), dtype=torch.bool)  # draws go by the order in memory
    kept: Array = drawn.bernoulli_(1 - p).numpy()
    return _scaled(x, kept, 1 / (1 - p) if p < 1 else 0.0), kept


def _scaled(x: Array, kept: Array, scale: float) -> Result:
    """A NaN that is dropped stays a NaN, as on the host: hence a product."""
    factors = kept.astype(x.dtype)
    factors *= x.dtype.type(scale)
    return np.multiply(x, factors, out=factors)


def _float_gradient(gradient: torch.Tensor, mask: torch.Tensor, _: float) -> bool | str:
    if gradient.dtype not in FLOAT_TYPES:
        return f"a gradient of {gradient.dtype}"
    return mask.dtype is torch.bool or mask.numel() == 0 or f"a mask of {mask.dtype}"


@kernel("aten::native_dropout_backward", when=_float_gradient)
@quiet
def dropout_backward(gradient: Array, mask: Array, scale: float) -> Result:
    if gradient.shape != mask.shape:
        raise Unsupported(f"a gradient of {gradient.shape} for a mask of {mask.shape}")
    return _scaled(gradient, mask, scale)
