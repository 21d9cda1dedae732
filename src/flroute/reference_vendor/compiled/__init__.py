"""Compiled kernels: Triton's language, compiled for the CPU, where that beats numpy.

``sources`` holds the kernels; the modules beside it say for which op each is, for which arguments and from which size on,
and launch it. They are candidates before numpy's when the extra is installed, ``pip install 'flroute[triton]'``.
"""

from __future__ import annotations

from importlib.util import find_spec

from flroute.vendor import Kernel, collect_kernels


def kernels() -> tuple[Kernel, ...]:
    """Every compiled kernel; none where what compiles them is not installed."""
    if find_spec("llvmlite") is None or find_spec("triton") is None:
        return ()
    from flroute.reference_vendor.compiled import (
        attention,
        batch_normalization,
        embedding,
        losses,
        normalization,
        optimizers,
        pointwise,
        rows,
        scans,
        sums,
    )

    modules = (
        pointwise,
        rows,
        sums,
        scans,
        normalization,
        batch_normalization,
        attention,
        embedding,
        losses,
        optimizers,
    )
    return collect_kernels(*modules, implementation="triton")
