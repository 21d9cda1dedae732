"""Resampling along one dimension: which elements make up an output, and with what weights.

The coordinates follow ATen/native/UpSample.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flroute.reference_vendor.sums import sum_by_index
from flroute.reference_vendor.support import Array, Result, narrow

Filter = Callable[[Array], Result]


@dataclass(frozen=True)
class Taps:
    """Along one dimension: element ``source[i]``, times ``weight[i]``, is a part of output ``target[i]``.

    ``target`` is sorted. ``count`` is the number of taps of each output where all have as many, else 0; without
    weights, all are 1.
    """

    inputs: int
    outputs: int
    source: Array
    target: Array
    weight: Array | None
    count: int

    def forward(self, x: Array, axis: int) -> Result:
        """Resample ``x`` along ``axis``."""
        if self.weight is None:
            return np.take(x, self.source, axis)
        weight = self.weight.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
        if not self.count:
            parts = np.take(x, self.source, axis) * weight
            return narrow(sum_by_index(parts, self.target, self.outputs, axis), x)
        total = np.take(x, self.source[:: self.count], axis) * weight[:: self.count]
        for tap in range(1, self.count):
            total += np.take(x, self.source[tap :: self.count], axis) * weight[tap :: self.count]
        return total

    def backward(self, gradient: Array, axis: int) -> Result:
        """The gradient of ``forward`` for ``x``, in double precision."""
        if self.weight is None:
            return sum_by_index(gradient, self.source, self.inputs, axis)
        weight = self.weight.reshape(-1, *(1,) * (gradient.ndim - 1 - axis))
        parts = np.take(gradient, self.target, axis) * weight
        return sum_by_index(parts, self.source, self.inputs, axis)


def _uniform(inputs: int, source: Array, weight: Array | None) -> Taps:
    """Taps from arrays of shape (outputs, taps), where all outputs have as many."""
    outputs, count = source.shape
    target = np.repeat(np.arange(outputs), count)
    return Taps(inputs, outputs, source.ravel(), target, None if weight is None else weight.ravel(), count)


def identity(size: int) -> Taps:
    """Every output is the input at its place."""
    return _uniform(size, np.arange(size)[:, None], None)


# -- coordinates --------------------------------------------------------------------------------------


def _ratio(inputs: int, outputs: int, scale: float | None) -> float:
    """Inputs per output; a scale the caller gave wins over the sizes."""
    return 1 / scale if scale is not None and scale > 0 else inputs / outputs


def _scale(inputs: int, outputs: int, align_corners: bool, scale: float | None) -> float:
    if align_corners:
        return (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return _ratio(inputs, outputs, scale)


def _coordinates(inputs: int, outputs: int, align_corners: bool, scale: float | None) -> Result:
    """Where the outputs lie among the inputs: ends meet ends, or centres lie half a step inside."""
    step = _scale(inputs, outputs, align_corners, scale)
    index = np.arange(outputs)
    return step * index if align_corners else step * (index + 0.5) - 0.5


def nearest(inputs: int, outputs: int, scale: float | None, *, exact: bool, dtype: np.dtype[Any]) -> Taps:
    """In the precision the host uses: which side of an integer a product falls decides the answer."""
    kind = dtype.type
    step = kind(_ratio(inputs, outputs, scale))
    if scale is None or scale <= 0:
        step = kind(inputs) / kind(outputs)
    index = np.arange(outputs, dtype=dtype) + kind(0.5 if exact else 0)
    source = np.floor((index * step).astype(np.float32)).astype(np.int64)
    return _uniform(inputs, np.minimum(source, inputs - 1)[:, None], None)


def linear(align_corners: bool, inputs: int, outputs: int, scale: float | None) -> Taps:
    if inputs == outputs:  # whatever scale was given, as on the host
        return identity(inputs)
    where = np.maximum(_coordinates(inputs, outputs, align_corners, scale), 0)
    first = np.minimum(where.astype(np.int64), inputs - 1)
    fraction = np.clip(where - first, 0, 1)
    source = np.stack([first, np.minimum(first + 1, inputs - 1)], 1)
    return _uniform(inputs, source, np.stack([1 - fraction, fraction], 1))


def _keys(distance: Array, a: float) -> Result:
    """Cubic convolution (Keys, 1981), nonzero within a distance of 2; ``a`` is its slope at 1."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def cubic(align_corners: bool, inputs: int, outputs: int, scale: float | None) -> Taps:
    where = _coordinates(inputs, outputs, align_corners, scale)
    first = np.floor(where).astype(np.int64)
    source = first[:, None] + np.arange(-1, 3)
    weight = _keys(where[:, None] - source, -0.75)
    return _uniform(inputs, np.clip(source, 0, inputs - 1), weight)


def triangle(distance: Array) -> Result:
    return np.maximum(1 - np.abs(distance), 0.0)


def pillow_cubic(distance: Array) -> Result:
    return _keys(distance, -0.5)


def lanczos(distance: Array) -> Result:
    """sinc(x) sinc(x / 3) within a distance of 3."""
    return np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0.0)


def antialiased(
    align_corners: bool, weigh: Filter, reach: float, inputs: int, outputs: int, scale: float | None
) -> Taps:
    """Where the image shrinks, the filter is stretched so that every input counts; weights sum to 1."""
    if inputs == outputs:  # whatever scale was given, as on the host
        return identity(inputs)
    step = _scale(inputs, outputs, align_corners, scale)
    stretch = max(step, 1.0)
    centre = step * (np.arange(outputs) + 0.5)
    low = np.maximum((centre - reach * stretch + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + reach * stretch + 0.5).astype(np.int64), inputs)
    counts = np.maximum(high - low, 0)
    target = np.repeat(np.arange(outputs), counts)
    first = np.cumsum(counts) - counts
    source = np.arange(len(target)) - first[target] + low[target]
    weight = weigh((source - centre[target] + 0.5) / stretch)
    total = np.bincount(target, weight, outputs)[target]
    weight = np.divide(weight, total, out=weight, where=total != 0)
    return Taps(inputs, outputs, source, target, weight, 0)
