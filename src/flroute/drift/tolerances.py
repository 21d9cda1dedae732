"""How far a kernel may be from the exact result: by the class of its op, its dtype and how many elements it adds up.

What flroute allows is in ``tolerances.toml``, beside this file, with the rule that makes tolerances of it. A vendor that promises
other accuracy says so in ``flroute.vendor.Vendor(tolerances=...)``.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flroute import registry
from flroute.drift.measures import BLOCK, Difference, flat
from flroute.op_families import family_of
from flroute.toml_files import read_toml

_DATA = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Tolerance:
    """An element is right within ``rtol * |reference| + atol * scale``, scale being the reference's largest magnitude.

    Attributes:
        rtol: relative to the element.
        atol: relative to the largest element.
        source: whose it is and what for: ``flroute: product``, ``acme: aten::mm``.
    """

    rtol: float
    atol: float
    source: str

    @property
    def is_exact(self) -> bool:
        """Whether every bit is to be right."""
        return self.rtol == 0 and self.atol == 0

    def times(self, factor: float) -> Tolerance:
        """A wider one, for errors that have built up over several ops."""
        return Tolerance(self.rtol * factor, self.atol * factor, f"{self.source}, {factor:g} times")


@dataclass(frozen=True)
class OpClass:
    """Ops whose rounding errors arise in one way.

    Attributes:
        name: of the class.
        about: in words.
        rtol_eps: relative error, in units of the result's eps.
        atol_eps: error relative to the largest element, in units of the eps of what is computed in.
        growth: how it grows with the number of elements added up: ``none``, ``log`` or ``sqrt``.
        split: devices split them into ops, each of which rounds its result.
    """

    name: str
    about: str
    rtol_eps: float
    atol_eps: float
    growth: str
    split: bool = False

    def growth_of(self, reduction_size: int) -> float:
        """How many times the error of one summand."""
        size = max(reduction_size, 1)
        return {"none": 1.0, "log": 1 + math.log2(size), "sqrt": math.sqrt(size)}[self.growth]


def tolerance_for(
    op: str,
    dtype: torch.dtype,
    reduction_size: int = 1,
    vendor: str | None = None,
    *,
    split: bool = False,
) -> Tolerance:
    """What is allowed for a result of an op.

    Args:
        op: ``aten::mm``, ``aten::add_.Tensor``.
        dtype: of the result. Integers and truth values are to be exact.
        reduction_size: how many elements are added up for one of the result.
        vendor: whose kernel it is; what this vendor states about the op, or about its class, comes first.
        split: whether the device computes it by other ops, each of which rounds its result.

    Example:
        >>> import torch
        >>> tolerance_for("aten::add.Tensor", torch.bfloat16).rtol == 2 * torch.finfo(torch.bfloat16).eps
        True
        >>> tolerance_for("aten::mm", torch.float32, reduction_size=1024).source
        'flroute: product'
    """
    kind = class_of(op)
    if vendor is not None and (stated := _stated_by(vendor, op, kind.name, dtype)) is not None:
        return stated
    source = f"flroute: {kind.name}"
    if not (dtype.is_floating_point or dtype.is_complex):
        return Tolerance(0.0, 0.0, source)
    eps = torch.finfo(dtype).eps
    eps_inside = eps if split or kind.split else min(eps, _EPS32)
    return Tolerance(kind.rtol_eps * eps, kind.atol_eps * eps_inside * kind.growth_of(reduction_size), source)


_EPS32 = torch.finfo(torch.float32).eps


def _stated_by(vendor: str, op: str, kind: str, dtype: torch.dtype) -> Tolerance | None:
    known = registry.load().vendors.get(vendor)
    stated = known.tolerances if known is not None else {}
    for about, by_dtype in stated.items():
        if about == kind or fnmatchcase(op, about):
            pair = by_dtype.get(str(dtype).removeprefix("torch."), by_dtype.get("*"))
            if pair is not None:
                return Tolerance(*pair, source=f"{vendor}: {about}")
    return None


def exceeds(found: Difference, tolerance: Tolerance) -> bool:
    """Whether the largest difference is more than any element is allowed, or infinities and NaNs are elsewhere."""
    allowed = (tolerance.rtol + tolerance.atol) * found.scale
    return found.mismatched_nonfinite > 0 or found.max_abs > allowed


def excess(
    value: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance, *, noise: float = 0.0
) -> float:
    """How many times the tolerance the worst element is away: up to 1 is right, 0 is exact.

    Args:
        value: what is judged.
        reference: what it should be.
        tolerance: what is allowed.
        noise: what is allowed on top to every element.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> round(excess(one + 0.25, one, Tolerance(rtol=0.125, atol=0.0, source="")), 3)
        2.0
    """
    return reading(value, reference, tolerance, noise=noise).excess


class Reading(NamedTuple):
    """What is known of a result after a look at it.

    Attributes:
        excess: how many times the tolerance the worst element is away.
        max_abs: largest difference.
        scale: largest magnitude in the reference.
        finite: whether all values are.
    """

    excess: float
    max_abs: float
    scale: float
    finite: bool = True


class Extent(NamedTuple):
    """What one pass over finite floating-point numbers tells.

    Attributes:
        error: largest difference from the reference.
        scale: largest magnitude in the reference.
        apart: largest difference from what a reference has carried along; infinite where that is not finite, or not asked.
    """

    error: float
    scale: float
    apart: float


def reading(
    value: torch.Tensor,
    reference: torch.Tensor,
    tolerance: Tolerance,
    *,
    noise: float = 0.0,
    extent: Extent | None = None,
) -> Reading:
    """``excess``, and what is found on the way. Where all differences are small against the scale, nothing more is computed.

    Args:
        value: what is judged.
        reference: what it should be.
        tolerance: what is allowed.
        noise: what is allowed on top to every element.
        extent: of both, if it is known already.
    """
    if not value.numel():
        return Reading(0.0, 0.0, 0.0)
    extent = extent or extent_of(value, reference)
    if extent is not None and extent.scale <= torch.finfo(value.dtype).max:
        fixed = tolerance.atol * extent.scale + torch.finfo(value.dtype).smallest_normal + noise
        if extent.error <= fixed:
            return Reading(extent.error / fixed, extent.error, extent.scale)
    return _read_elements(flat(value), flat(reference), tolerance, noise, value.dtype)


def looked_at(value: torch.Tensor, reference: torch.Tensor) -> Reading:
    """Only the largest difference, without a tolerance; quick where everything is finite."""
    extent = extent_of(value, reference)
    if extent is not None:
        return Reading(extent.error, extent.error, extent.scale)
    return reading(value, reference, Tolerance(1.0, 1.0, ""))


def extent_of(
    value: torch.Tensor, reference: torch.Tensor, carried: torch.Tensor | None = None
) -> Extent | None:
    """How far ``value`` is from a reference, and from what that has carried along, in one pass over all three.

    Args:
        value: on the host.
        reference: of the same shape.
        carried: of the same shape.

    Returns:
        ``None`` where value and reference are not both finite floating-point numbers, or there are none.

    Example:
        >>> import torch
        >>> one = torch.ones(3)
        >>> extent_of(one, one + 1, one + 2)
        Extent(error=1.0, scale=2.0, apart=2.0)
    """
    v, r = flat(value), flat(reference)
    c = None if carried is None or not carried.is_floating_point() else flat(carried)
    if not len(v) or not v.dtype.kind == r.dtype.kind == "f":
        return None
    error = scale = 0.0
    apart = math.inf if c is None else 0.0
    with np.errstate(invalid="ignore", over="ignore"):  # of an infinity and another one
        for start in range(0, len(v), BLOCK):
            part = r[start : start + BLOCK]
            wide, scratch = _scratch.wide[: len(part)], _scratch.other[: len(part)]
            np.copyto(wide, v[start : start + BLOCK])
            error = max(error, _largest(np.subtract(wide, part, scratch)))
            if error == math.inf:
                return None
            scale = max(scale, _largest(part))
            if c is not None:
                apart = max(apart, _largest(np.subtract(wide, c[start : start + BLOCK], scratch)))
    return Extent(error, scale, apart)


class _Scratch(threading.local):
    """Room for a block of elements, twice; numpy is a third slower where lines of the processor's cache are straddled."""

    def __init__(self) -> None:
        room = np.empty(2 * BLOCK + 8)
        start = -room.ctypes.data % 64 // 8
        self.wide, self.other = room[start : start + 2 * BLOCK].reshape(2, BLOCK)


_scratch = _Scratch()


def _largest(array: Any) -> float:
    """The largest magnitude; infinite where an element is no number."""
    found = max(np.maximum.reduce(array), -np.minimum.reduce(array))
    return math.inf if math.isnan(found) else float(found)


def _read_elements(v: Any, r: Any, tolerance: Tolerance, noise: float, dtype: torch.dtype) -> Reading:
    if v.dtype.kind in "biu" and r.dtype.kind in "biu":
        unequal = v != r
        if not unequal.any():
            return Reading(0.0, 0.0, _largest_finite(r))
    floating = dtype.is_floating_point or dtype.is_complex
    fixed = tolerance.atol * _largest_finite(r) + noise
    fixed += torch.finfo(dtype).smallest_normal if floating else 0.0
    worst, max_abs, finite = 0.0, 0.0, True
    for start in range(0, len(v), BLOCK):
        pair = v[start : start + BLOCK], r[start : start + BLOCK]
        ratio, error = _ratios(*pair, tolerance.rtol, fixed, dtype)
        worst = max(worst, float(ratio.max(initial=0.0)))
        max_abs = max(max_abs, float(error.max(initial=0.0)))
        finite = finite and bool(np.isfinite(pair[0]).all())
    return Reading(worst, max_abs, _largest_finite(r), finite)


def _ratios(v: Any, r: Any, rtol: float, fixed: float, dtype: torch.dtype) -> tuple[Any, Any]:
    """For each element the difference over what is allowed, and the difference; of infinities and NaNs infinite, or zero."""
    wide = np.complex128 if "c" in (v.dtype.kind, r.dtype.kind) else np.float64
    unequal = v != r
    v, r = v.astype(wide), r.astype(wide)
    with np.errstate(all="ignore"):
        error = np.abs(v - r)
        if v.dtype.kind == "f":
            error = np.maximum(error, np.where(unequal & (error == 0), 1.0, 0.0))  # large integers
        right = ~unequal | (np.isnan(v) & np.isnan(r)) | _overflow(v, r, dtype)
        error = np.where(right, 0.0, error)
        ratio = np.where(error == 0, 0.0, error / (rtol * np.abs(r) + fixed))
    ratio[np.isnan(ratio)] = np.inf
    return ratio, np.where(np.isfinite(error), error, 0.0)


def _largest_finite(r: Any) -> float:
    if r.dtype.kind in "biu":
        return float(max(int(r.max()), -int(r.min()), 0)) if len(r) else 0.0
    size = np.abs(r)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def _overflow(v: Any, r: Any, dtype: torch.dtype) -> Any:
    """Where the dtype cannot hold the reference, and the value is an infinity of the same sign."""
    if not dtype.is_floating_point or v.dtype.kind == "c":
        return False
    info = torch.finfo(dtype)
    return (np.abs(r) >= info.max * (1 - info.eps)) & np.isinf(v) & (np.sign(v) == np.sign(r))


@cache
def class_of(op: str) -> OpClass:
    """The class of an op.

    Example:
        >>> class_of("aten::add_.Tensor").name, class_of("aten::convolution_backward").name
        ('arithmetic', 'convolution')
    """
    name = op.partition("::")[2].partition(".")[0]
    name = name if name.startswith("__") else name.rstrip("_")
    special = next(
        (kind for patterns, kind in stated()["ops"].items() if _matches(name, patterns)),
        None,
    )
    return op_classes()[special or stated()["families"][family_of(op)]]


def _matches(name: str, patterns: str) -> bool:
    bare = name.removeprefix("_foreach_")
    return any(fnmatchcase(bare, pattern) for pattern in patterns.split())


@cache
def op_classes() -> dict[str, OpClass]:
    """The classes by name, in the order of the file."""
    return {name: OpClass(name, **facts) for name, facts in stated()["classes"].items()}


@cache
def stated() -> dict[str, Any]:
    """What ``tolerances.toml`` says: classes, the class of each family, and of ops that differ from theirs."""
    return read_toml(_DATA, _DATA.read_text(encoding="utf-8"))
