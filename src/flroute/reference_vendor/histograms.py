"""Counting values into bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flroute.reference_vendor.casting import from_bfloat16
from flroute.reference_vendor.support import FLOATS, INTEGERS, NUMBERS, REALS, Array, Result, quiet
from flroute.vendor import Unsupported, kernel


def _range(x: Array, low: float, high: float) -> tuple[float, float]:
    """What the bins cover: all of ``x`` if the bounds are equal, and at least a range of size 1."""
    if low == high and x.size:
        low, high = float(x.min()), float(x.max())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise Unsupported(f"bins from {low} to {high}")
    return low, high


@kernel("aten::histc", dtypes=NUMBERS)
@quiet
def histc(x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Result:
    """Values outside the range, and NaN, are in no bin; the upper bound is in the last one. Integers are counted as on cuda."""
    if bins <= 0:
        raise Unsupported(f"{bins} bins")
    low, high = _range(x, min, max)
    flat = x.reshape(-1)
    flat = flat[(flat >= low) & (flat <= high)]
    place = ((flat - x.dtype.type(low)) / x.dtype.type(high - low) * bins).astype(np.int64)
    return np.bincount(np.minimum(place, bins - 1), minlength=bins).astype(x.dtype)


@kernel("aten::bincount", dtypes=(*REALS, "float16", "bfloat16"), mixed=True)
def bincount(x: Array, weights: Array | None = None, minlength: int = 0) -> Result:
    """Weights of any dtype but float32 add up to doubles."""
    if x.ndim != 1 or x.dtype.name not in INTEGERS or (x.size and x.min() < 0) or minlength < 0:
        raise Unsupported(f"bincount of {x.dtype} of shape {x.shape}, or of negative numbers")
    if weights is None:
        return np.bincount(x, minlength=minlength)
    if weights.shape != x.shape:
        raise Unsupported(f"weights of shape {weights.shape} for shape {x.shape}")
    if x.size == 0:
        return np.zeros(minlength, np.int64)
    counts = np.bincount(x, from_bfloat16(weights) if weights.dtype == np.uint16 else weights, minlength)
    return counts.astype(weights.dtype) if weights.dtype == np.float32 else counts


# -- histograms with edges ----------------------------------------------------------------------------


def _edges(x: Array, bins: int, bounds: Sequence[float] | None) -> Result:
    """``bins + 1`` edges from the least to the greatest value, 0 to 1 if there is none, or between the bounds."""
    if bins <= 0 or (bounds is not None and len(bounds) != 2):
        raise Unsupported(f"{bins} bins over {bounds}")
    low, high = (0.0, 1.0) if x.size == 0 else (float(x.min()), float(x.max()))
    if bounds is not None:
        low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise Unsupported(f"bins from {low} to {high}")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return _steps(low, high, bins + 1, x.dtype)


def _steps(low: float, high: float, count: int, dtype: np.dtype[Any]) -> Result:
    """Equal steps, counted from the nearer end, so that both ends are exact, as ``linspace`` does."""
    first, last = dtype.type(low), dtype.type(high)
    step = (last - first) / dtype.type(count - 1)
    place = np.arange(count).astype(dtype)
    return np.where(place < count // 2, first + step * place, last - step * (count - 1 - place)).astype(dtype)


def _histogram(
    points: Array, edges: Sequence[Array], weight: Array | None, density: bool, *, uniform: bool
) -> Array:
    """The weight of the points in each box between the edges; the last edge of a dimension belongs to its last bin."""
    shape = tuple(len(edge) - 1 for edge in edges)
    inside = np.ones(len(points), bool)
    place = np.zeros(len(points), np.int64)
    for coordinate, edge, bins in zip(points.T, edges, shape, strict=True):
        within = (coordinate >= edge[0]) & (coordinate <= edge[-1])
        inside &= within
        if uniform:
            spot = ((coordinate - edge[0]) * (bins / (edge[-1] - edge[0]))).astype(np.int64)
            spot = np.clip(spot, 0, bins - 1)  # rounding may have put it one beside
            spot = np.clip(spot + (coordinate >= edge[spot + 1]) - (coordinate < edge[spot]), 0, bins - 1)
        else:
            spot = np.clip(np.searchsorted(edge, coordinate, side="right") - 1, 0, bins - 1)
        place = place * bins + spot
    weights = None if weight is None else weight.reshape(-1)[inside]
    counts = np.bincount(place[inside], weights, math.prod(shape)).reshape(shape)
    if density:
        volume = np.ones(shape)
        for dim, edge in enumerate(edges):
            volume *= np.diff(edge).reshape(-1, *(1,) * (len(shape) - 1 - dim))
        counts = counts / counts.sum() / volume
    return counts.astype(points.dtype)


@kernel("aten::histogram.bin_ct", dtypes=FLOATS)
@quiet
def histogram(
    x: Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Result, Result]:
    edges = _edges(x, bins, range)
    return _histogram(x.reshape(-1, 1), [edges], _like(x, weight), density, uniform=True), edges


@kernel("aten::histogram.bins_tensor", dtypes=FLOATS)
@quiet
def histogram_with_edges(
    x: Array, bins: Array, *, weight: Array | None = None, density: bool = False
) -> tuple[Result, Result]:
    if bins.ndim != 1 or bins.size < 1:
        raise Unsupported(f"edges of shape {bins.shape}")
    return _histogram(x.reshape(-1, 1), [bins], _like(x, weight), density, uniform=False), bins.copy()


def _like(x: Array, weight: Array | None) -> Array | None:
    if weight is not None and weight.shape != x.shape:
        raise Unsupported(f"weights of shape {weight.shape} for shape {x.shape}")
    return weight


def _points(x: Array, dimensions: int, weight: Array | None) -> Array:
    """A row for each point."""
    if x.ndim < 2 or x.shape[-1] != dimensions or (weight is not None and weight.shape != x.shape[:-1]):
        raise Unsupported(f"points of shape {x.shape} in {dimensions} dimensions")
    return x.reshape(-1, dimensions)


@kernel("aten::_histogramdd_bin_edges", dtypes=FLOATS)
@quiet
def histogramdd_bin_edges(
    x: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Result]:
    points = _points(x, len(bins), weight)
    if range is not None and len(range) != 2 * len(bins):
        raise Unsupported(f"a range of {len(range)} numbers for {len(bins)} dimensions")
    bounds = [None if range is None else range[2 * i : 2 * i + 2] for i, _ in enumerate(bins)]
    return [_edges(column, count, bound) for column, count, bound in zip(points.T, bins, bounds, strict=True)]


@kernel("aten::_histogramdd_from_bin_cts", dtypes=FLOATS)
@quiet
def histogramdd(
    x: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Result:
    edges = histogramdd_bin_edges(x, bins, range=range, weight=weight)
    return _histogram(_points(x, len(bins), weight), edges, weight, density, uniform=True)


@kernel("aten::_histogramdd_from_bin_tensors", dtypes=FLOATS)
@quiet
def histogramdd_with_edges(
    x: Array, bins: Sequence[Array], *, weight: Array | None = None, density: bool = False
) -> Result:
    return _histogram(_points(x, len(bins), weight), bins, weight, density, uniform=False)
