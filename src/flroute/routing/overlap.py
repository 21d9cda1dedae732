"""PyTorch's rules for written tensors that share memory (ATen/MemoryOverlap.h), which its host kernels check by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flroute.errors import Unsupported
from flroute.routing.schema import OpFacts, bind, tensors_in

Check = Callable[[torch.Tensor, tuple[Any, ...], dict[str, Any]], None]
"""Takes a tensor that is written, and the call's arguments."""

_SAME_VALUE = frozenset({"aten::fill_", "aten::zero_"})
"""Every element gets the same value; the host does not look."""

_DEPRECATED = frozenset(
    {"aten::masked_fill_", "aten::index_fill_", "aten::index_put_", "aten::_index_put_impl_"}
)
"""The host warns, and computes element by element."""

_APART = frozenset(
    {
        "aten::cat", "aten::stack", "aten::gather", "aten::index_select", "aten::take", "aten::masked_select",
        "aten::linalg_cross",
    }
)  # fmt: skip
"""Elements are read in another order than written: no input may share memory with the result."""

_SELF_FIRST = frozenset(
    {
        "aten::index_add", "aten::index_copy", "aten::index_reduce", "aten::scatter", "aten::scatter_add",
        "aten::scatter_reduce", "aten::index_put", "aten::_index_put_impl", "aten::put", "aten::index_fill",
    }
)  # fmt: skip
"""``self`` becomes the result, then the others are read: ``self`` may be the result itself, the others share nothing with it."""

_SELF_ALONE = frozenset(
    {
        "aten::addmm", "aten::addmv", "aten::addbmm", "aten::baddbmm", "aten::addr", "aten::cumsum", "aten::cumprod",
        "aten::logcumsumexp", "aten::renorm", "aten::sort", "aten::bernoulli", "aten::normal",
    }
)  # fmt: skip
"""``self`` may be the result itself; of the others the host does not look."""


def check_of(facts: OpFacts) -> Check:
    """What to check of each tensor that ``facts.op`` writes."""
    name = facts.schema.name
    if name in _SAME_VALUE:
        return _nothing
    between = _between(facts, name.removesuffix("_"))

    def check(target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _repeats(target):
            if name in _DEPRECATED:
                raise Unsupported(
                    "more than one element of the written tensor refers to a single memory location"
                )
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )
        between(target, args, kwargs)

    return check


def _between(facts: OpFacts, name: str) -> Check:
    if facts.bumps_no_version:
        return _nothing  # the tensors of a list may share memory: they are written one after the other
    if name == "aten::copy" or torch.Tag.pointwise in (facts.functional or facts.op).tags:

        def elementwise(target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for source in tensors_in(args, kwargs):
                refuse_partial(target, source)

        return elementwise
    if name not in _APART | _SELF_FIRST | _SELF_ALONE:
        return _nothing
    written = {argument.name for argument in facts.written}

    def by_name(target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = {key: value for key, value in bind(facts, args, kwargs).items() if key not in written}
        if name not in _APART:
            for source in tensors_in((inputs.pop("self", None),), {}):
                refuse_partial(target, source)
        if name not in _SELF_ALONE:
            for source in tensors_in((), inputs):
                _refuse_any(target, source)

    return by_name


def _nothing(target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    pass


def refuse_partial(target: torch.Tensor, source: torch.Tensor) -> None:
    """The rule for element-wise ops: dense tensors are the same memory or share none.

    Raises:
        RuntimeError: as on the host.
    """
    if target is not source and _meet(target, source) and not _same(target, source):
        _refuse()


def _refuse_any(target: torch.Tensor, source: torch.Tensor) -> None:
    if _meet(target, source):
        _refuse()


def _refuse() -> None:
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
        "location. Please clone() the tensor before performing the operation."
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.dtype.itemsize


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share memory, as far as PyTorch can tell: of tensors with gaps it cannot."""
    (start, end), (low, high) = _extent(one), _extent(other)
    return low < end and start < high and one.device == other.device and _is_dense(one) and _is_dense(other)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _extent(one) == _extent(other) and one.stride() == other.stride()


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether elements share a location, as far as PyTorch looks: a dimension of stride 0."""
    strides = tensor.stride()
    return (
        0 in strides
        and not tensor.is_contiguous()
        and any(size > 1 and step == 0 for size, step in zip(tensor.shape, strides, strict=True))
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory in some order, each once."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for step, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if step != expected:
            return False
        expected *= size
    return True
