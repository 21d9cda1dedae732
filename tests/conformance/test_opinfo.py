"""PyTorch's operator database on the device: forward, backward, in-place and ``out=``, in three modes.

The host's results on the same inputs are the truth. A node of this file is one op in one dtype; it runs each sample
once on the host and once per mode on the device.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from .checking import check
from .moving import Call, detached, with_leaves
from .outcome import Outcome
from .sampling import chosen
from .target import MODES, Target
from .trial import Trial, seed_everything

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int64,
    torch.bool,
)
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Ops whose results have no defined values."""
UP_TO_PHASE = {"linalg.eig", "linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank"}
"""Ops whose vectors are right with any phase, in real numbers with either sign: LAPACK libraries differ in which they choose.
Values are compared after PyTorch's own function for gradients, whose result does not depend on it."""

UP_TO_TIES = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0, "msort": None}
"""Ops that may name any of several equal elements, as PyTorch documents, and where they take ``dim``. In dtypes with many equal
elements, what the positions point at is compared instead of the positions; gradients follow these, and only their facts are."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One node per op and dtype that the host supports."""
    if "op" not in metafunc.fixturenames:
        return
    on_reference = metafunc.config.getoption("conformance_device", "reference").startswith("reference")
    dtypes = DTYPES if on_reference else (torch.float32,)
    nodes = [(op, dtype) for op in op_db for dtype in dtypes if dtype in op.supported_dtypes("cpu")]
    metafunc.parametrize(
        ("op", "dtype"), nodes, ids=[f"{op.full_name}-{str(dtype)[6:]}" for op, dtype in nodes]
    )


def test_op(op: OpInfo, dtype: torch.dtype, target: Target, request: pytest.FixtureRequest) -> None:
    """The device does what the host does, in every mode."""
    outcome = Outcome(op.full_name, str(dtype)[6:], MODES)
    for number, sample in enumerate(chosen(samples(op, dtype), dtype, target, request.config)):
        for trial in trials(op, sample, number):
            check(trial, target, outcome)
    outcome.verdict()


def samples(op: OpInfo, dtype: torch.dtype) -> list[SampleInput]:
    """PyTorch's sample inputs on the host, the same in every process."""
    seed_everything(zlib.crc32(op.full_name.encode()))
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))


def trials(op: OpInfo, sample: SampleInput, number: int) -> Iterator[Trial]:
    """The functional op; its in-place variant; for the first sample also ``out=``, of the right size and empty."""
    call = with_leaves(Call(sample.input, sample.args, sample.kwargs))
    tied = op.name in UP_TO_TIES and dtype_of(sample) not in (torch.float32, torch.float64)
    tied = tied and not sample.kwargs.get("stable")
    values = op.name not in UNINITIALISED | UP_TO_PHASE and not tied
    function = host_sections if op.name == "tensor_split" else op.op
    yield Trial(f"sample {number}", function, call, sample.output_process_fn_grad, values)
    if op.name in UP_TO_PHASE:
        yield Trial(
            f"sample {number} without phases", followed_by(function, sample.output_process_fn_grad), call
        )
    if tied:
        yield Trial(f"sample {number} up to ties", picked(op), detached(call))
    if op.inplace_variant is not None and not sample.broadcasts_input:
        arguments = call if op.supports_inplace_autograd else detached(call)
        yield Trial(
            f"sample {number} in place",
            in_place(op.inplace_variant),
            arguments,
            sample.output_process_fn_grad,
        )
    if number == 0 and op.supports_out and "out" not in sample.kwargs:
        for what, make in (("out=", torch.zeros_like), ("empty out=", lambda tensor: tensor.new_empty(0))):
            if (with_outs := with_out(op.op, detached(call), make)) is not None:
                yield Trial(f"sample {number} {what}", op.op, with_outs, values=values)


def followed_by(function: Callable[..., Any], process: Callable[[Any], Any]) -> Callable[..., Any]:
    """``process`` of what ``function`` returns."""
    return lambda *args, **kwargs: process(function(*args, **kwargs))


def dtype_of(sample: SampleInput) -> torch.dtype | None:
    """The dtype of a sample's first argument."""
    return sample.input.dtype if isinstance(sample.input, torch.Tensor) else None


def picked(op: OpInfo) -> Callable[..., Any]:
    """The op's values, if it returns any, and the elements its positions point at."""
    place = UP_TO_TIES[op.name]

    def call(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = op.op(first, *args, **kwargs)
        if place is None:
            return result
        values, positions = (None, result) if isinstance(result, torch.Tensor) else result
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        if first.dim() == 0:
            return values, positions
        index = positions if positions.dim() == first.dim() else positions.unsqueeze(dim)
        return values, first.gather(dim, index).reshape(positions.shape)

    return call


def host_sections(tensor: torch.Tensor, sections: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.tensor_split``, whose second argument PyTorch wants on the host whatever the device."""
    sections = sections.cpu() if isinstance(sections, torch.Tensor) else sections
    return torch.tensor_split(tensor, sections, *args, **kwargs)


def in_place(variant: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place variant on a copy of its first argument."""

    def call(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        written = first.clone()
        assert variant(written, *args, **kwargs) is written, "an in-place op must return its first argument"
        return written

    return call


def with_out(
    function: Callable[..., Any], call: Call, make: Callable[[torch.Tensor], torch.Tensor]
) -> Call | None:
    """The call with an ``out=`` argument made after the host's result; ``None`` where there is no such thing."""
    try:
        result = function(call.input, *call.args, **call.kwargs)
    except Exception:  # what the host refuses is not asked of the device
        return None
    if not all(
        isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in tree_leaves(result)
    ):
        return None
    return Call(call.input, call.args, {**call.kwargs, "out": tree_map(make, result)})
