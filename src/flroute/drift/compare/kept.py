"""What a run keeps of a tensor: all elements of a small one, of a large one those at fixed places, and its statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flroute.torch_compat import outside_dispatch_modes

KEPT_WHOLE = 1 << 16
"""Elements of the largest tensor that is kept whole."""
KEPT_WHOLE_OF_OP = 1 << 12
"""Likewise of the results of single ops, which are many."""
SAMPLED = 1 << 12
"""Elements that are kept of a larger one."""

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Statistics:
    """Of the finite elements of a tensor that is not kept whole; ``nonfinite`` counts the others."""

    mean: float
    rms: float
    smallest: float
    largest: float
    nonfinite: int


@dataclass(frozen=True)
class Kept:
    """A tensor as a run keeps it.

    Attributes:
        dtype: of the tensor, ``float32``.
        shape: likewise.
        values: on the host, flat: every element, or a sample.
        statistics: where ``values`` is a sample.
    """

    dtype: str
    shape: tuple[int, ...]
    values: torch.Tensor
    statistics: Statistics | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every element is there."""
        return self.statistics is None

    @property
    def is_floating(self) -> bool:
        """Whether it has rounding errors."""
        return self.values.is_floating_point() or self.values.is_complex()

    def equals(self, other: Kept) -> bool:
        """Whether both are the same tensor, as far as is known."""
        return self.shape == other.shape and torch.equal(
            torch.nan_to_num(self.values.double()), torch.nan_to_num(other.values.double())
        )


def keep(tensor: torch.Tensor, whole: int = KEPT_WHOLE) -> Kept | None:
    """What is kept of a tensor on any device; ``None`` of one without plain elements (sparse, quantized).

    Args:
        tensor: on any device.
        whole: of up to so many elements each is kept.
    """
    host = on_host(tensor)
    if host is None:
        return None
    dtype, flat = str(tensor.dtype).removeprefix("torch."), host.reshape(-1)
    if flat.numel() <= whole:
        return Kept(dtype, tuple(tensor.shape), flat)
    return Kept(dtype, tuple(tensor.shape), flat[sampled_places(flat.numel())], _statistics(flat))


def on_host(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of a tensor's elements on the host, whatever modes are active; ``None`` of one without plain elements."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_quantized:
        return None
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    with outside_dispatch_modes(), torch.no_grad():
        return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)


def sampled_places(numel: int) -> torch.Tensor:
    """Which elements of a large tensor are kept: spread evenly, but for no stride, with the first and the last one."""
    steps = torch.arange(SAMPLED - 2, dtype=torch.float64, device="cpu") * _GOLDEN
    inner = ((steps - steps.floor()) * numel).long()
    return torch.cat([torch.tensor([0], device="cpu"), inner, torch.tensor([numel - 1], device="cpu")])


def _statistics(flat: torch.Tensor) -> Statistics:
    wide = (flat.abs() if flat.is_complex() else flat).double()
    finite = wide[wide.isfinite()]
    if not finite.numel():
        return Statistics(0.0, 0.0, 0.0, 0.0, wide.numel())
    return Statistics(
        float(finite.mean()),
        float(finite.square().mean().sqrt()),
        float(finite.min()),
        float(finite.max()),
        wide.numel() - finite.numel(),
    )
