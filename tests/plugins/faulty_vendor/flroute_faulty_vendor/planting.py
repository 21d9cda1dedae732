"""The reference vendor's kernels, some of them spoiled: numpy's and the compiled ones of an op alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from flroute import reference_vendor
from flroute.vendor import Kernel
from flroute_faulty_vendor.faults import Fault


@functools.cache
def _right() -> tuple[Kernel, ...]:
    return reference_vendor.kernels()


def kernels(faults: Iterable[Fault]) -> tuple[Kernel, ...]:
    """Every kernel of the reference vendor; those of an op with a fault have it."""
    found = _right()
    for fault in faults:
        if not any(kernel.op in fault.ops for kernel in found):
            raise LookupError(f"{fault.name}: the reference vendor has no kernel for {fault.ops}")
        found = tuple(
            replace(kernel, function=_spoiled(kernel.function, fault)) if kernel.op in fault.ops else kernel
            for kernel in found
        )
    return found


def _spoiled(right: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    """A kernel under the same name and signature. Half precision, which comes as integers, stays right."""
    signature = inspect.signature(right)

    @functools.wraps(right)
    def spoiled(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        if any(isinstance(value, np.ndarray) and value.dtype == np.uint16 for value in call.args):
            return right(*args, **kwargs)
        with np.errstate(all="ignore"):
            return fault.function(right, *call.args, **call.kwargs)

    return spoiled
