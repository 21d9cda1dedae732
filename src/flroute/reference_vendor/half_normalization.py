"""Batch normalization of half precision with weights and statistics in float32, as ``torch.autocast`` leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flroute.reference_vendor import normalization
from flroute.reference_vendor.half_precision import HALVES, rounded_to, widened
from flroute.reference_vendor.support import Array
from flroute.vendor import kernel

DTYPES = ("float16", "bfloat16", "float32")


def _others_are_wide(others: Sequence[Any]) -> bool | str:
    wide = all(not isinstance(other, torch.Tensor) or other.dtype is torch.float32 for other in others)
    return wide or "weights or statistics that are not float32"


def _half_input(x: torch.Tensor, *others: Any) -> bool | str:
    return _others_are_wide(others) if x.dtype in HALVES else f"an input of {x.dtype}"


def _half_gradient(gradient: torch.Tensor, x: torch.Tensor, *others: Any) -> bool | str:
    if x.dtype not in HALVES or gradient.dtype is not x.dtype:
        return f"a gradient of {gradient.dtype} for an input of {x.dtype}"
    return _others_are_wide(others)


@kernel(
    "aten::native_batch_norm", "aten::_native_batch_norm_legit", dtypes=DTYPES, mixed=True, when=_half_input
)
def batch_norm_of_half(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    output, mean, rstd = normalization.batch_norm(
        widened(x), weight, bias, running_mean, running_var, training, momentum, eps
    )
    return rounded_to(x.dtype, output), mean, rstd


@kernel("aten::native_batch_norm_backward", dtypes=DTYPES, mixed=True, when=_half_gradient)
def batch_norm_of_half_backward(
    gradient: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    for_input, for_weight, for_bias = normalization.batch_norm_backward(
        widened(gradient), widened(x), weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
    )  # fmt: skip
    return None if for_input is None else rounded_to(x.dtype, for_input), for_weight, for_bias
