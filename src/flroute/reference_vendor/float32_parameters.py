"""Normalizations whose input is of half precision while parameters and statistics are float32, as a model's are under autocast.

The host takes just these two together: what has the input's shape is of its dtype, all that is a number per channel is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch

from flroute.reference_vendor.half_precision import HALVES, rounded_to, widened
from flroute.reference_vendor.support import Array, quiet
from flroute.vendor import Kernel

_NORMALIZATIONS = frozenset(
    f"aten::{op}"
    for op in (
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
        "native_batch_norm", "native_batch_norm_backward", "batch_norm_backward", "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats", "_batch_norm_with_update",
    )
)  # fmt: skip


def half_beside_float32(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether an input of half precision has parameters, all of them float32."""
    return x.dtype in HALVES and {p.dtype for p in parameters if p is not None} == {torch.float32}


def parameters_fit(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool | str:
    """Whether parameters are of the input's dtype, or float32 beside half precision; else what is wrong, in words."""
    others = {p.dtype for p in parameters if p is not None} - {x.dtype}
    return not others or half_beside_float32(x, *parameters) or f"parameters of {others.pop()} for {x.dtype}"


def beside_half_precision(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """For each normalization in float32, one of half precision whose parameters stay in float32."""
    for kernel in kernels:
        if kernel.op in _NORMALIZATIONS:
            data = 2 if kernel.op.endswith("_backward") else 1
            yield replace(
                kernel,
                function=_rounding_the_first(kernel.function, data),
                dtypes=(*HALVES, torch.float32, torch.uint8),  # the last is what cudnn reserves
                mixed=True,
                when=partial(_only_data_is_half, data),
            )


def _only_data_is_half(data: int, *args: Any) -> bool | str:
    """``data`` is how many arguments have the shape of the input: itself, and in a backward pass a gradient before it."""
    first, *rest = (a for a in args if isinstance(a, torch.Tensor) and a.dtype is not torch.uint8)
    if data > 1 and rest.pop(0).dtype is not first.dtype:
        return "a gradient of another dtype"
    return half_beside_float32(first, *rest) or "not half precision beside float32"


def _rounding_the_first(function: Callable[..., Any], data: int) -> Callable[..., Any]:
    """Compute in float32; of the results only the first has the shape of the input, and its dtype."""

    @wraps(function)
    @quiet
    def compute(*args: Any) -> tuple[Array | None, ...]:
        first, *rest = function(*map(widened, args[:data]), *args[data:])
        return None if first is None else rounded_to(args[0].dtype, first), *rest

    compute.__name__ = f"{function.__name__}_mixed"
    return compute
