"""What the host computes otherwise than by the op of the same name: ops that only devices have, or not in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from flroute.routing.composites import PARTS


def _grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: None = None,  # noqa: ARG001 -- PyTorch takes none yet
    out_dtype: Any = None,  # noqa: ARG001 -- the reference has its own
) -> Tensor:
    """Products of groups: rows of ``a``, or columns of ``b``, or both, are cut at ``offs``."""
    if offs is None:
        return torch.ops.aten.bmm.default(a, b)  # type: ignore[no-any-return]
    ends = offs.tolist()
    cuts = list(zip([0, *ends[:-1]], ends, strict=True))
    if a.dim() == 2 and b.dim() == 3:
        made = a.new_zeros(a.shape[0], b.shape[2], device="cpu")
        for (start, end), factor in zip(cuts, b, strict=True):
            made[start:end] = a[start:end] @ factor
        return made
    if a.dim() == 3:
        made = b.new_zeros(a.shape[1], b.shape[1], device="cpu")
        for (start, end), factor in zip(cuts, a, strict=True):
            made[:, start:end] = factor @ b[:, start:end]
        return made
    return torch.stack([a[:, start:end] @ b[start:end] for start, end in cuts])


def _histc(x: Tensor, bins: int = 100, low: Any = 0, high: Any = 0) -> Tensor:
    """Counts of integers, in the numbers that the host counts."""
    wide = x if x.is_floating_point() else x.double()
    return torch.ops.aten.histc.default(wide, bins, low, high).to(x.dtype)  # type: ignore[no-any-return]


_FORMULAS: dict[str, Callable[..., Any]] = {
    "aten::_grouped_mm": _grouped_mm,
    "aten::histc": _histc,
    "aten::convolution_overrideable": torch.ops.aten.convolution.default,
}
_ONLY_ON_DEVICES = ("aten::_thnn_", "aten::_scaled_dot_product_fused_attention_overrideable")


@cache
def computed_by(op: Any) -> Callable[..., Any]:
    """What computes an op on the host in any precision."""
    name = op.name()
    if name in _FORMULAS:
        return _FORMULAS[name]
    return PARTS[name] if name.startswith(_ONLY_ON_DEVICES) and name in PARTS else op


def _dropout(x: Tensor, p: float, train: bool | None, result: Any) -> list[Tensor]:
    mask = result[1]
    if train is False or p == 0:
        return [x.clone(), mask]
    return [x * mask / (1 - p) if p < 1 else torch.zeros_like(x, device="cpu"), mask]


AFTER_A_DRAW: dict[str, Callable[..., list[Tensor]]] = {"aten::native_dropout": _dropout}
"""What an op makes of its arguments and of what the device has drawn, which is in its result."""


def is_scratch(op: str, place: int) -> bool:
    """Whether a result is only for the op's own backward: not defined everywhere, or of another form where that is quicker.

    Args:
        op: ``aten::_ctc_loss``.
        place: of the result among the op's.
    """
    return place > 0 and op.partition(".")[0] in _WITH_SCRATCH


def same_choice(op: str, bound: dict[str, Any], ours: Tensor, exact: Tensor) -> bool:
    """Whether positions in a tensor are as good as others, because equal elements are there.

    Args:
        op: that says where elements are: ``aten::sort``, ``aten::topk``.
        bound: its arguments by name.
        ours: positions that it says.
        exact: positions that it might say.
    """
    name = op.partition("::")[2].partition(".")[0]
    source = bound.get("self")
    if name not in _CHOICES or not isinstance(source, Tensor) or ours.dtype is not torch.int64:
        return False
    dim = bound.get("dim", None if name.startswith("arg") and name != "argsort" else -1)
    if dim is None:
        source, ours, exact, dim = source.reshape(-1), ours.reshape(1), exact.reshape(1), 0
    elif ours.dim() < source.dim():
        ours, exact = ours.unsqueeze(dim), exact.unsqueeze(dim)
    if not source.dim():
        return True
    size = source.shape[dim]
    if not bool(((ours >= 0) & (ours < size)).all()):
        return False
    one, other = source.gather(dim, ours), source.gather(dim, exact)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


_WITH_SCRATCH = frozenset(["aten::_ctc_loss", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"])

_CHOICES = frozenset(
    [
        "sort",
        "argsort",
        "topk",
        "kthvalue",
        "median",
        "nanmedian",
        "mode",
        "max",
        "min",
        "argmax",
        "argmin",
        "cummax",
        "cummin",
    ]
)
