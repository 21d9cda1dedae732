"""Reductions and scans that are asked for a dtype, as an argument or by the dtype of ``out=``: PyTorch casts, then computes."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.casting import cast, from_bfloat16
from flroute.reference_vendor.support import NUMPY_TYPES, Array, F
from flroute.vendor import Unsupported, numpy_dtype

_BFLOAT16 = np.dtype(np.uint16)
_KINDS = "biufc"


def result_dtype(x: Array, dtype: torch.dtype | None) -> np.dtype[Any]:
    """The dtype a reduction of ``x`` works in: as asked, else integers and bool become int64."""
    if dtype is None:
        return x.dtype if x.dtype.kind in "fc" else np.dtype(np.int64)
    return numpy_dtype(dtype)


def casts_first(function: F) -> F:
    """Hand a reduction its argument as it is where ``dtype`` holds all its values, else cast to ``dtype``.

    float16 and bfloat16 are cast to, computed in float32, and rounded to.

    Raises:
        Unsupported: real numbers out of complex ones, of which PyTorch warns, or a dtype that numpy lacks.
    """

    @wraps(function)
    def compute(x: Array, *args: Any, dtype: torch.dtype | None = None, **named: Any) -> Any:
        if dtype is None or _holds(dtype, x.dtype):
            return function(x, *args, dtype=dtype, **named)
        if x.dtype.kind == "c" and not dtype.is_complex:
            raise Unsupported(f"a result of {dtype} from {x.dtype}")
        if dtype is torch.bfloat16:
            narrowed = from_bfloat16(cast(x, _BFLOAT16))
            return cast(np.asarray(function(narrowed, *args, dtype=torch.float32, **named)), _BFLOAT16)
        if dtype not in NUMPY_TYPES:
            raise Unsupported(f"a result of {dtype}")
        narrowed = x.astype(numpy_dtype(dtype))
        if dtype is torch.float16:
            wide = function(narrowed.astype(np.float32), *args, dtype=torch.float32, **named)
            return wide.astype(np.float16)
        return function(narrowed, *args, dtype=dtype, **named)

    return compute  # type: ignore[return-value]


def _holds(dtype: torch.dtype, given: np.dtype[Any]) -> bool:
    """Whether a sum in ``dtype`` needs no cast of what it adds up; integers of any width wrap alike."""
    if dtype not in NUMPY_TYPES or dtype is torch.float16:
        return False
    return _KINDS.index(numpy_dtype(dtype).kind) >= _KINDS.index(given.kind.replace("u", "i"))
