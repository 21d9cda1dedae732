"""Sampling an image at points of a grid (Jaderberg et al., "Spatial Transformer Networks", 2015), in two and three dimensions.

A point has one coordinate in [-1, 1] per dimension of the image, the last dimension first. Interpolation is a sum over
neighbours, so value and gradients are loops over corners. Coordinates are computed in the dtype of the grid and by the
host's formulas (ATen/native/GridSampler.h): which pixel a point falls into decides values and gradients alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from flroute.reference_vendor.sums import accurate_sum
from flroute.reference_vendor.support import FLOATS, Array, Result, narrow, quiet
from flroute.vendor import Unsupported, kernel

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True)
class Sampling:
    """How points become pixels."""

    mode: int
    padding: int
    align_corners: bool

    def pixels(self, coordinate: Array, size: int) -> tuple[Array, Any]:
        """A coordinate in [-1, 1] in pixels, and the derivative."""
        half = coordinate.dtype.type((size - 1 if self.align_corners else size) / 2)
        scaled = (coordinate + 1) * half
        return (scaled if self.align_corners else scaled - coordinate.dtype.type(0.5)), half

    def inside(self, x: Array, size: int) -> tuple[Array, Array]:
        """Pixels brought back into the image as the padding says, and the derivative."""
        slope = np.ones_like(x)
        if self.padding == ZEROS:
            return x, slope
        if self.padding == REFLECTION:
            low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
            x, slope = _reflected(x, x.dtype.type(low), x.dtype.type(high - low))
        slope = np.where((x > 0) & (x < size - 1), slope, 0).astype(x.dtype)
        return np.clip(np.where(np.isnan(x), 0, x), 0, size - 1).astype(x.dtype), slope


def _reflected(x: Array, low: Any, span: Any) -> tuple[Array, Array]:
    """``x`` mirrored at ``low`` and ``low + span`` until it lies between, and the derivative."""
    if span == 0:
        return np.zeros_like(x), np.zeros_like(x)
    sign = np.where(x < low, -1, 1).astype(x.dtype)
    away = np.abs(x - low)
    extra = np.fmod(away, span)
    even = np.floor(away / span) % 2 == 0
    return np.where(even, extra + low, span - extra + low), np.where(even, sign, -sign)


class _Pixels:
    """Images as rows of pixels, (N, C, pixels), read and added to at positions that may lie outside."""

    def __init__(self, shape: Sequence[int], where: Sequence[Array]) -> None:
        """``where`` has a position per spatial dimension, each (N, points)."""
        batch, channels, *size = shape
        self.shape, self.count = (batch, channels, prod(size)), batch * channels * prod(size)
        self.there = np.ones(where[0].shape, np.bool_)
        self.position = np.zeros(where[0].shape, np.int64)
        for pixel, length in zip(where, size, strict=True):
            fits = (pixel >= 0) & (pixel < length)
            self.there &= fits
            self.position = self.position * length + np.where(fits, pixel, 0).astype(np.int64)

    def read(self, x: Array) -> Result:
        """(N, C, points); zero outside of the image."""
        found = np.take_along_axis(x.reshape(self.shape), self.position[:, None], 2)
        return np.where(self.there[:, None], found, 0).astype(x.dtype, copy=False)

    def add(self, total: Array, values: Array) -> None:
        """Add values (N, C, points) to ``total``, flat and in double precision; not those outside of the image."""
        batch, channels, pixels = self.shape
        rows = np.arange(batch * channels).reshape(batch, channels, 1) * pixels
        flat = (rows + self.position[:, None])[np.broadcast_to(self.there[:, None], values.shape)]
        kept = values[np.broadcast_to(self.there[:, None], values.shape)]
        total += np.bincount(flat, weights=kept, minlength=self.count)


Neighbour = tuple[list[Array], list[Array], list[Array]]
"""Of one neighbour, per spatial dimension: where it is, its weight, and the derivative of the weight by the coordinate."""


def _cubic(t: Array) -> list[tuple[Result, Result]]:
    """Weights of four neighbours in a row by cubic convolution (Keys, 1981), a = -0.75, and their derivatives."""
    a = t.dtype.type(-0.75)

    def near(x: Array) -> tuple[Result, Result]:
        return ((a + 2) * x - (a + 3)) * x * x + 1, (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Array) -> tuple[Result, Result]:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, (3 * a * x - 10 * a) * x + 8 * a

    (w0, d0), (w1, d1), (w2, d2), (w3, d3) = far(t + 1), near(t), near(1 - t), far(2 - t)
    return [(w0, d0), (w1, d1), (w2, -d2), (w3, -d3)]


def _neighbours(grid: Array, size: Sequence[int], how: Sampling) -> Iterator[Neighbour]:
    """The neighbours of each point. ``grid`` is (N, points, dimensions), the last dimension of the image first."""
    choices: list[list[tuple[Array, Array, Array]]] = []
    for dim, length in enumerate(size):
        x, scale = how.pixels(grid[..., len(size) - 1 - dim], length)
        if how.mode == BICUBIC:  # the padding applies to each neighbour, not to the point
            first = np.floor(x)
            taps = enumerate(_cubic(x - first))
            choices.append([(how.inside(first + k - 1, length)[0], w, d * scale) for k, (w, d) in taps])
            continue
        x, slope = how.inside(x, length)
        if how.mode == NEAREST:
            nearest = np.rint(x)
            choices.append([(nearest, np.ones_like(x), np.zeros_like(x))])
        else:
            first, slope = np.floor(x), slope * scale
            choices.append([(first, first + 1 - x, -slope), (first + 1, x - first, slope)])
    for chosen in product(*choices):
        where, weight, derivative = zip(*chosen, strict=True)
        yield list(where), list(weight), list(derivative)


def _weight(factors: Sequence[Array]) -> Result:
    total = factors[0]
    for factor in factors[1:]:
        total = total * factor
    return total[:, None]


def _sample(x: Array, grid: Array, mode: int, padding: int, align_corners: bool, spatial: int) -> Result:
    _check(x, grid, mode, padding, spatial)
    points = grid.reshape(grid.shape[0], -1, spatial)
    total = np.zeros((*x.shape[:2], points.shape[1]), x.dtype)
    for where, weights, _ in _neighbours(points, x.shape[2:], Sampling(mode, padding, align_corners)):
        total += _Pixels(x.shape, where).read(x) * _weight(weights)
    return total.reshape(*x.shape[:2], *grid.shape[1:-1])


def _sample_backward(
    gradient: Array,
    x: Array,
    grid: Array,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    spatial: int,
) -> tuple[Array | None, Array]:
    _check(x, grid, mode, padding, spatial)
    if gradient.shape != (*x.shape[:2], *grid.shape[1:-1]):
        raise Unsupported(f"a gradient of {gradient.shape} for {x.shape} sampled at {grid.shape}")
    points = grid.reshape(grid.shape[0], -1, spatial)
    upstream = gradient.reshape(*gradient.shape[:2], -1)
    for_input, for_grid = np.zeros(x.size), np.zeros(points.shape)
    for where, weights, slopes in _neighbours(points, x.shape[2:], Sampling(mode, padding, align_corners)):
        pixels = _Pixels(x.shape, where)
        if output_mask[0]:
            pixels.add(for_input, upstream * _weight(weights))
        if mode == NEAREST:
            continue
        through = accurate_sum(pixels.read(x) * upstream, (1,))
        for dim in range(spatial):
            factors = [slopes[d] if d == dim else weights[d] for d in range(spatial)]
            for_grid[..., spatial - 1 - dim] += through * _weight(factors)[:, 0]
    of_input = narrow(for_input.reshape(x.shape), x) if output_mask[0] else None
    return of_input, narrow(for_grid.reshape(grid.shape), grid)


def _check(x: Array, grid: Array, mode: int, padding: int, spatial: int) -> None:
    """Raise Unsupported for what the host refuses: its message says it best."""
    fit = x.ndim == grid.ndim == spatial + 2 and x.shape[0] == grid.shape[0] and grid.shape[-1] == spatial
    modes = (BILINEAR, NEAREST, BICUBIC) if spatial == 2 else (BILINEAR, NEAREST)
    if not fit or 0 in x.shape or mode not in modes or padding not in (ZEROS, BORDER, REFLECTION):
        raise Unsupported(f"grid_sampler of {x.shape} at {grid.shape}, mode {mode}, padding {padding}")


@kernel("aten::grid_sampler_2d", dtypes=FLOATS)
@quiet
def grid_sampler_2d(
    x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Result:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 2)


@kernel("aten::grid_sampler_2d_backward", dtypes=FLOATS)
@quiet
def grid_sampler_2d_backward(
    gradient: Array,
    x: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array]:
    return _sample_backward(
        gradient, x, grid, interpolation_mode, padding_mode, align_corners, output_mask, 2
    )


@kernel("aten::grid_sampler_3d", dtypes=FLOATS)
@quiet
def grid_sampler_3d(
    x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Result:
    return _sample(x, grid, interpolation_mode, padding_mode, align_corners, 3)


@kernel("aten::grid_sampler_3d_backward", dtypes=FLOATS)
@quiet
def grid_sampler_3d_backward(
    gradient: Array,
    x: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array]:
    return _sample_backward(
        gradient, x, grid, interpolation_mode, padding_mode, align_corners, output_mask, 3
    )
