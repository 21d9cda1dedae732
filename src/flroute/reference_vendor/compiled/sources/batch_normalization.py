"""Batch normalization of (samples, channels, positions), one channel per program, and its gradients.

Sums are made block by block and added up in double precision.
"""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.common import wide


@triton.jit
def statistics(x, mean, variance, samples, channels, width, BLOCK: tl.constexpr):
    """Mean and biased variance of each channel."""
    channel = tl.program_id(0).to(tl.int64)
    count = (samples * width).to(tl.float64)
    total = tl.cast(0.0, tl.float64)
    for sample in range(samples):
        start = (sample * channels + channel) * width
        for first in range(0, width, BLOCK):
            i = first + tl.arange(0, BLOCK)
            total += tl.sum(wide(tl.load(x + start + i, mask=i < width, other=0.0)), 0).to(tl.float64)
    centre = total / count
    if not x.dtype.element_ty.is_fp64():
        centre = centre.to(tl.float32)
    squares = tl.cast(0.0, tl.float64)
    for sample in range(samples):
        start = (sample * channels + channel) * width
        for first in range(0, width, BLOCK):
            i = first + tl.arange(0, BLOCK)
            v = wide(tl.load(x + start + i, mask=i < width, other=0.0)) - centre
            squares += tl.sum(tl.where(i < width, v * v, 0.0), 0).to(tl.float64)
    off = centre.to(tl.float64) - total / count  # what rounding the centre adds to every square
    tl.store(mean + channel, total / count)
    tl.store(variance + channel, squares / count - off * off)


@triton.jit
def normalize(x, mean, scale, bias, out, channels, width, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """(x - mean) * scale + bias, the last three one per channel; a program takes one channel of one sample."""
    row = tl.program_id(0).to(tl.int64)
    channel = row % channels
    centre, factor = tl.load(mean + channel), tl.load(scale + channel)
    for first in range(0, width, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = (wide(tl.load(x + row * width + i, mask=i < width)) - centre) * factor
        if BIAS:
            v += tl.load(bias + channel)
        tl.store(out + row * width + i, v, mask=i < width)


@triton.jit
def sums(gradient, x, mean, total, products, samples, channels, width, BLOCK: tl.constexpr):
    """The sums of g and of g (x - mean) in each channel."""
    channel = tl.program_id(0).to(tl.int64)
    centre = tl.load(mean + channel)
    of_gradient, of_products = tl.cast(0.0, tl.float64), tl.cast(0.0, tl.float64)
    for sample in range(samples):
        start = (sample * channels + channel) * width
        for first in range(0, width, BLOCK):
            i = first + tl.arange(0, BLOCK)
            g = wide(tl.load(gradient + start + i, mask=i < width, other=0.0))
            v = wide(tl.load(x + start + i, mask=i < width, other=0.0))
            of_gradient += tl.sum(g, 0).to(tl.float64)
            of_products += tl.sum(g * (v - centre), 0).to(tl.float64)
    tl.store(total + channel, of_gradient)
    tl.store(products + channel, of_products)


@triton.jit
def differentiate(
    gradient, x, mean, scale, shift, slope, out, channels, width, TRAIN: tl.constexpr, BLOCK: tl.constexpr
):
    """g scale, less shift and (x - mean) slope if the statistics were the batch's own."""
    row = tl.program_id(0).to(tl.int64)
    channel = row % channels
    for first in range(0, width, BLOCK):
        i = first + tl.arange(0, BLOCK)
        g = wide(tl.load(gradient + row * width + i, mask=i < width)) * tl.load(scale + channel)
        if TRAIN:
            v = wide(tl.load(x + row * width + i, mask=i < width)) - tl.load(mean + channel)
            g = g - tl.load(shift + channel) - v * tl.load(slope + channel)
        tl.store(out + row * width + i, g, mask=i < width)
