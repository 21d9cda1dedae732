"""Activation functions made of straight pieces (and hardswish, of parabolas), and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.activations import leaky_relu
from flroute.reference_vendor.support import (
    FLOATS,
    Array,
    Result,
    narrow,
    quiet,
    select,
    wide,
    without,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::hardshrink", dtypes=FLOATS)
def hardshrink(x: Array, lambd: float = 0.5) -> Result:
    return without(np.less_equal(np.absolute(x), x.dtype.type(lambd)), x)


@kernel("aten::softshrink", dtypes=FLOATS)
@quiet
def softshrink(x: Array, lambd: float = 0.5) -> Result:
    if lambd < 0:
        raise Unsupported(f"softshrink with lambd={lambd}")
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))


@kernel("aten::hardshrink_backward", "aten::softshrink_backward", dtypes=FLOATS)
def shrink_backward(gradient: Array, x: Array, lambd: float) -> Result:
    return without(np.less_equal(np.absolute(x), x.dtype.type(lambd)), gradient)


@kernel("aten::hardsigmoid", dtypes=FLOATS)
@quiet
def hardsigmoid(x: Array) -> Result:
    return np.minimum(np.maximum(x + 3, 0), 6) / 6


@kernel("aten::hardsigmoid_backward", dtypes=FLOATS)
@quiet
def hardsigmoid_backward(gradient: Array, x: Array) -> Result:
    return np.where((x > -3) & (x < 3), gradient / 6, 0).astype(x.dtype, copy=False)


@kernel("aten::hardswish", dtypes=FLOATS)
@quiet
def hardswish(x: Array) -> Result:
    return x * np.minimum(np.maximum(x + 3, 0), 6) / 6


@kernel("aten::hardswish_backward", dtypes=FLOATS)
@quiet
def hardswish_backward(gradient: Array, x: Array) -> Result:
    slope = np.where(x <= -3, 0, np.where(x < 3, wide(x) / 3 + 0.5, 1))
    return narrow(gradient * slope, x)


@kernel("aten::_prelu_kernel", dtypes=FLOATS)
@quiet
def prelu(x: Array, weight: Array) -> Result:
    return np.where(x > 0, x, weight * x)


@kernel("aten::_prelu_kernel_backward", dtypes=FLOATS)
@quiet
def prelu_backward(gradient: Array, x: Array, weight: Array) -> tuple[Any, Any]:
    of_input = np.where(x > 0, gradient, weight * gradient)
    return of_input, np.where(x > 0, 0, x * gradient).astype(x.dtype, copy=False)


# -- rrelu: below zero a random slope, the host's for the host's seed -----------------------------------


def _writes_two_arrays(*_: Any, **__: Any) -> bool:
    """A predicate that admits all: kernels without one are also used for half precision, where only results are rounded."""
    return True


@kernel("aten::rrelu_with_noise", dtypes=FLOATS, when=_writes_two_arrays)
@quiet
def rrelu_from_host_generator(
    x: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Result:
    """``noise`` receives the slopes. PyTorch draws one, a double, for each element that is not positive."""
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    if noise.shape != x.shape:
        raise Unsupported(f"noise of shape {noise.shape} for a tensor of shape {x.shape}")
    sloped = x <= 0
    lower, upper = float(x.dtype.type(lower)), float(x.dtype.type(upper))
    draws = torch.empty(int(np.count_nonzero(sloped)), dtype=torch.float64, device="cpu")
    noise[...] = 1
    noise[sloped] = draws.uniform_(0, 1, generator=generator).numpy() * (upper - lower) + lower
    return select(sloped, x * noise, x)


@kernel("aten::rrelu_with_noise_", dtypes=FLOATS, when=_writes_two_arrays)
def rrelu_in_place_from_host_generator(
    x: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> None:
    x[...] = rrelu_from_host_generator(x, noise, lower, upper, training, generator)
