"""How far a tensor is from a reference: one pass over both, in float64, a cache's worth of elements at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BLOCK = 1 << 15
"""Elements that are looked at together: what is made of them stays in the processor's cache."""

_EXPONENT = np.array(np.inf).view(np.int64)
"""The bits of a float64 that say its exponent: alone they are the power of two below it."""

_KNOWN_TO_NUMPY = frozenset(
    {torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)


@dataclass(frozen=True)
class Difference:
    """How far the elements of a tensor are from those of a reference.

    Elements that are no numbers in both, or the same infinity, are equal; of pairs of which one alone is finite, or whose
    infinities differ, only the number is known.

    Attributes:
        max_abs: largest absolute difference.
        mean_abs: mean absolute difference.
        max_rel: largest difference relative to the reference; infinite where that is zero and the value is not.
        mean_rel: mean of the finite ones.
        max_ulp: largest difference in units in the last place of the value's dtype, at the reference's magnitude.
        cosine: of the angle between both as vectors; 1 for two of zeros.
        mismatched_nonfinite: elements of which one is infinite or no number and the other is something else.
        numel: elements there are.
        scale: largest finite magnitude in the reference.
    """

    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0
    mean_rel: float = 0.0
    max_ulp: float = 0.0
    cosine: float = 1.0
    mismatched_nonfinite: int = 0
    numel: int = 0
    scale: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether there is none."""
        return self.max_abs == 0 and not self.mismatched_nonfinite


def difference(value: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype | None = None) -> Difference:
    """How far ``value`` is from ``reference``.

    Args:
        value: on any device; of any dtype.
        reference: of the same shape, on any device; usually of a more precise dtype. Where it is beyond what ``dtype`` holds,
            an infinity is right.
        dtype: whose units in the last place count; the value's own if absent.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import torch
        >>> found = difference(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0], dtype=torch.float64))
        >>> found.max_abs, found.mean_abs, found.max_rel
        (0.5, 0.25, 0.25)
    """
    if value.shape != reference.shape:
        raise ValueError(
            f"a difference is of tensors of one shape, not {list(value.shape)} and {list(reference.shape)}"
        )
    kind = dtype or value.dtype
    sums = _Sums(kind)
    for v, r in _blocks(value, reference):
        sums.add(v, r)
    return sums.result(value.numel())


def _blocks(value: torch.Tensor, reference: torch.Tensor) -> Any:
    """Pairs of flat arrays in float64 or complex128, integers and truth values as they are, which together are both tensors."""
    v, r = flat(value), flat(reference)
    wide = np.complex128 if "c" in (v.dtype.kind, r.dtype.kind) else np.float64
    exact = v.dtype.kind in "biu" and r.dtype.kind in "biu"
    for start in range(0, len(v), BLOCK):
        pair = v[start : start + BLOCK], r[start : start + BLOCK]
        yield pair if exact else tuple(part.astype(wide, copy=False) for part in pair)


def flat(tensor: torch.Tensor) -> Any:
    """The elements of a tensor as a flat array on the host, of a dtype that numpy has."""
    here = tensor if tensor.layout is torch.strided else tensor.to_dense()
    if here.dtype not in _KNOWN_TO_NUMPY:
        if here.is_quantized:
            here = here.dequantize()
        else:
            here = here.detach().cpu().to(torch.complex64 if here.is_complex() else torch.float32)  # exact
    return here.numpy(force=True).reshape(-1)


class _Sums:
    """What is known after some of the elements."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._info = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else None
        self._limit = self._info.max if self._info is not None else math.inf
        self._max_abs = self._sum_abs = self._max_rel = self._sum_rel = self._max_ulp = self._scale = 0.0
        self._dot = self._of_value = self._of_reference = 0.0
        self._mismatched = self._finite = self._with_rel = 0

    def add(self, v: Any, r: Any) -> None:
        unequal = None
        if v.dtype.kind in "biu":
            unequal = v != r
            v, r = v.astype(np.float64), r.astype(np.float64)
        error, size = _error_and_size(v, r)
        if unequal is not None:
            error = np.maximum(error, unequal)  # large integers may be unequal and round to the same
        largest, scale = float(error.max()), float(size.max())
        if not (math.isfinite(largest) and scale <= self._limit):
            v, r = self._finite_part(v, r)
            error, size = _error_and_size(v, r)
            largest, scale = float(error.max(initial=0.0)), float(size.max(initial=0.0))
        self._finite += len(v)
        self._scale = max(self._scale, scale)
        self._add_angle(v, r)
        if largest == 0:
            self._with_rel += len(v)
            return
        self._max_abs = max(self._max_abs, largest)
        self._sum_abs += float(error.sum())
        self._add_relative(error, size)
        if self._info is not None:
            self._max_ulp = max(self._max_ulp, float((error / ulp(size, self._info)).max()))

    def _finite_part(self, v: Any, r: Any) -> tuple[Any, Any]:
        """The pairs that can be subtracted; others that differ are counted."""
        if self._info is not None and v.dtype.kind == "f":  # what the dtype cannot hold is an infinity
            r = np.where(_rounds_to_infinity(np.abs(r), self._info) & np.isinf(v), np.copysign(np.inf, r), r)
        both = np.isfinite(v) & np.isfinite(r)
        same = (v == r) | (np.isnan(v) & np.isnan(r))
        self._mismatched += int((~both & ~same).sum())
        return v[both], r[both]

    def _add_relative(self, error: Any, size: Any) -> None:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            rel = error / size
        known = np.isfinite(rel)
        infinite = 0
        if not known.all():
            infinite = int(np.isinf(rel).sum())  # what is neither is 0/0, which is no difference
            rel = rel[known]
        self._max_rel = math.inf if infinite else max(self._max_rel, float(rel.max()))
        self._sum_rel += float(rel.sum())
        self._with_rel += len(error) - infinite

    def _add_angle(self, v: Any, r: Any) -> None:
        with np.errstate(over="ignore"):
            self._dot += float(np.vdot(v, r).real)
            self._of_value += float(np.vdot(v, v).real)
            self._of_reference += float(np.vdot(r, r).real)

    def result(self, numel: int) -> Difference:
        return Difference(
            max_abs=self._max_abs,
            mean_abs=self._sum_abs / max(self._finite, 1),
            max_rel=self._max_rel,
            mean_rel=self._sum_rel / max(self._with_rel, 1),
            max_ulp=self._max_ulp,
            cosine=self._cosine(),
            mismatched_nonfinite=self._mismatched,
            numel=numel,
            scale=self._scale,
        )

    def _cosine(self) -> float:
        if self._max_abs == 0:
            return 1.0
        norms = math.sqrt(self._of_value) * math.sqrt(self._of_reference)
        return max(-1.0, min(1.0, self._dot / norms)) if norms and math.isfinite(norms) else 0.0


def ulp(size: Any, info: Any) -> Any:
    """The unit in the last place of a dtype at each magnitude.

    Example:
        >>> import torch
        >>> float(ulp(np.array([1.5]), torch.finfo(torch.bfloat16))[0])
        0.0078125
    """
    bits = np.maximum(size, info.smallest_normal, dtype=np.float64).view(np.int64)
    return (bits & _EXPONENT).view(np.float64) * info.eps  # as by frexp and ldexp, in a third of the time


def _error_and_size(v: Any, r: Any) -> tuple[Any, Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(v - r), np.abs(r)


def _rounds_to_infinity(size: Any, info: Any) -> Any:
    return size >= info.max * (1 + info.eps / 4)
