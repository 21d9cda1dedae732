"""The reference vendor: two devices made of the host's own memory, with kernels in numpy.

It is an ordinary vendor package, found through its entry point, and uses nothing of flroute but
``flroute.vendor``. A kernel here is the shortest right way to say in numpy what an op computes; its
accuracy is PyTorch's own or better.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from flroute.reference_vendor import (
    activations,
    adaptive_pooling,
    attention,
    bessel,
    casting,
    comparison,
    compiled,
    complex_numbers,
    convolution,
    creation,
    ctc,
    distances,
    dropout,
    elementwise,
    embedding,
    embedding_bag,
    error_functions,
    exponential,
    extremes,
    factorizations,
    fake_quantize,
    fft,
    foreach,
    fractional_pooling,
    fused_optimizers,
    gamma,
    gelu,
    grid_sample,
    histograms,
    indexing,
    integers,
    interpolation,
    ldl,
    least_squares,
    linalg,
    logarithms,
    losses,
    margin_losses,
    masking,
    matmul,
    mixed,
    moments,
    normalization,
    norms,
    padding,
    piecewise,
    polynomials,
    pooling,
    random,
    rearranging,
    reductions,
    rms_normalization,
    rounding,
    scans,
    scatter,
    segments,
    sets,
    softmax,
    sorting,
    trigonometry,
    unfolding,
    weight_norm,
)
from flroute.reference_vendor.float32_parameters import beside_half_precision
from flroute.reference_vendor.half_precision import in_float32, promotes
from flroute.reference_vendor.memory import MEMORY, TOTAL
from flroute.reference_vendor.triton_cpu import launches_on_devices, register_device
from flroute.vendor import DeviceFacts, Kernel, Vendor, collect_kernels, hookimpl, host_address

VERSION = "0.1.0"

MODULES = (
    elementwise,
    trigonometry,
    logarithms,
    rounding,
    integers,
    activations,
    piecewise,
    gelu,
    error_functions,
    exponential,
    gamma,
    bessel,
    polynomials,
    comparison,
    complex_numbers,
    reductions,
    extremes,
    moments,
    matmul,
    convolution,
    pooling,
    adaptive_pooling,
    fractional_pooling,
    fused_optimizers,
    padding,
    interpolation,
    grid_sample,
    unfolding,
    rearranging,
    softmax,
    attention,
    losses,
    margin_losses,
    ctc,
    normalization,
    rms_normalization,
    weight_norm,
    embedding,
    linalg,
    factorizations,
    ldl,
    least_squares,
    fake_quantize,
    norms,
    distances,
    fft,
    embedding_bag,
    foreach,
    creation,
    casting,
    indexing,
    scatter,
    masking,
    sorting,
    sets,
    scans,
    segments,
    histograms,
    random,
    dropout,
    mixed,
)


def _device() -> DeviceFacts:
    return DeviceFacts(
        name="Reference (host CPU)",
        total_memory=TOTAL,
        multi_processor_count=os.cpu_count() or 1,
    )


def kernels() -> tuple[Kernel, ...]:
    """Every kernel: compiled ones, those in numpy, those for half precision made of them; last those that promote dtypes.

    Made of no other: random numbers are the host's own in each precision, no tensor says in which a new one is to be, and
    attention and RMS normalization keep statistics in float32.
    """
    every = collect_kernels(*MODULES, implementation="numpy")
    apart = set(collect_kernels(attention, creation, random, rms_normalization, implementation="numpy"))
    one = [kernel for kernel in every if not promotes(kernel)]
    several = [kernel for kernel in every if promotes(kernel)]
    return (
        *compiled.kernels(),
        *one,
        *beside_half_precision(one),
        *in_float32(kernel for kernel in one if kernel not in apart),
        *several,
        *in_float32(several),
    )


@hookimpl
def flroute_vendors() -> Iterator[Vendor]:
    """Two devices that share the host's memory and cores, so that moves between devices can be tried."""
    register_device("fl", host_address)
    yield Vendor(
        name="reference",
        version=VERSION,
        devices=(_device(), _device()),
        memory=MEMORY,
        kernels=kernels(),
    )


@hookimpl
def flroute_session(device: str) -> AbstractContextManager[None] | None:
    """While a session of ours is open, Triton's kernels take tensors on our devices."""
    return launches_on_devices() if device.partition(":")[0] == "reference" else None
