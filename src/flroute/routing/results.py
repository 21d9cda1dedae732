"""What a kernel returned, beside what PyTorch expects: layouts, dtypes, and room for it in ``out=`` tensors."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flroute.device.capsule import row_major
from flroute.device.dtypes import NUMPY_CARRIERS, NUMPY_DTYPES
from flroute.device.tensors import owns_its_memory
from flroute.errors import Unsupported
from flroute.routing.expected import Expected
from flroute.routing.schema import tensors_in
from flroute.routing.transfers import Geometry, give_geometry


def speaks_of_bfloat16(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a tensor among the arguments is bfloat16, or a result is asked for in it."""
    return any(v is torch.bfloat16 for v in (*args, *kwargs.values())) or any(
        t.dtype is torch.bfloat16 for t in tensors_in(args, kwargs)
    )


def are_plain(expected: Expected, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all results are row-major, and of the dtype that an array says or, where the call speaks of it, bfloat16."""
    bits = speaks_of_bfloat16(args, kwargs)
    dtypes = NUMPY_DTYPES.keys() ^ {torch.uint16, torch.bfloat16} if bits else NUMPY_DTYPES.keys()
    return all(e is not None and e.dtype in dtypes and e.stride() == row_major(e.shape) for e in expected)


def as_computed(results: list[Any], inputs: Sequence[torch.Tensor]) -> Expected:
    """What to expect where PyTorch cannot tell without the data.

    Of an array of bits, that it stands for what its like among the inputs does, in the layout it has; of any other, anything.

    Raises:
        Unsupported: the inputs have both the dtype that numpy lacks and the one that stands for it.
    """
    stands_for: dict[np.dtype[Any], set[torch.dtype]] = defaultdict(set)
    for tensor in inputs:
        if tensor.dtype in NUMPY_CARRIERS:
            stands_for[NUMPY_CARRIERS[tensor.dtype]].add(tensor.dtype)
    return [_in_the_dtype(r, stands_for[r.dtype]) if isinstance(r, np.ndarray) else None for r in results]


def _in_the_dtype(result: np.ndarray[Any, Any], dtypes: set[torch.dtype]) -> torch.Tensor | None:
    if len(dtypes) > 1:
        raise Unsupported("PyTorch cannot tell the result's dtype before it is computed, nor can numpy after")
    if dtypes <= NUMPY_DTYPES.keys():
        return None
    own = [step // result.itemsize for step in result.strides]
    strides = own if is_laid_out(result) else row_major(result.shape)
    return torch.empty_strided(result.shape, strides, dtype=next(iter(dtypes)), device="meta")


def is_laid_out(result: Any) -> bool:
    """Whether the kernel itself chose the strides, those of dimensions of size 1 and 0 among them, where PyTorch has no say.

    Of an empty array numpy may say that all are 0, which nobody chose.
    """
    if not isinstance(result, np.ndarray) or not owns_its_memory(result):
        return False
    return min(result.strides, default=0) >= 0 and (result.size > 0 or any(result.strides))


def all_contiguous(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether every tensor argument is row-major."""
    return all(t.is_contiguous() for t in tensors_in(args, kwargs))


def looks(value: Any) -> str:
    """Shape and dtype, in words."""
    return f"shape {tuple(value.shape)}, dtype {value.dtype}"


def check_same_dtypes(outs: Sequence[torch.Tensor], results: Sequence[torch.Tensor | None]) -> None:
    """Where PyTorch cannot tell without the data, or draws in the dtype of ``out``, only the host knows what it does with another.

    Raises:
        Unsupported: one of ``outs`` has another dtype than its result.
    """
    for out, result in zip(outs, results, strict=True):
        if result is not None and out.dtype != result.dtype:
            raise Unsupported(f"an out= of {out.dtype} for {result.dtype}, which only the host can judge")


def resize_outputs(wanted: Sequence[Geometry], op: str) -> None:
    """Give ``out=`` tensors the geometry of their results, all or none, and warn of each that had elements.

    Raises:
        torch.OutOfMemoryError: there is no room for one of them.
    """
    for out, size, _ in wanted:
        if out.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not match "
                f"the required output shape {list(size)} of {op}. Pass an out= of that shape, or an empty one.",
                stacklevel=2,
            )
    give_geometry(*wanted)
