"""Moving whole structures of host tensors to the device, with strides, offsets and lazy bits as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map


class Call(NamedTuple):
    """The arguments of one call."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, in order; parameters and buffers for a module."""
        found: list[torch.Tensor] = []
        for leaf in tree_leaves(tuple(self)):
            if isinstance(leaf, torch.Tensor):
                found.append(leaf)
            elif isinstance(leaf, torch.nn.Module):
                found += [*leaf.parameters(), *leaf.buffers()]
        return found

    def names_device(self) -> bool:
        """Whether any argument says on which device the result belongs."""
        return bool(self.tensors()) or any(
            isinstance(leaf, torch.device) for leaf in tree_leaves(tuple(self))
        )


DOUBLED = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
"""The dtype in which the host computes what a result of lower precision should have been."""


def call_to(call: Call, device: torch.device) -> Call:
    """The same call with its tensors, modules and device arguments on ``device``."""

    def other(leaf: Any) -> Any:
        return device if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu") else leaf

    return _with(call, lambda tensor: tensor_to(tensor, device), lambda module: module.to(device), other)


def in_float64(call: Call) -> Call:
    """The same call with its floating-point tensors, modules and dtype arguments in float64, complex ones in complex128."""

    def other(leaf: Any) -> Any:
        return DOUBLED.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return _with(call, tensor_in_float64, lambda module: module.double(), other)


def tensor_in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values in float64 or complex128; integers stay what they are."""
    doubled = tensor.detach().to(DOUBLED.get(tensor.dtype, tensor.dtype), copy=True)
    return doubled.requires_grad_(tensor.requires_grad)


def _with(
    call: Call,
    tensor: Callable[[torch.Tensor], torch.Tensor],
    module: Callable[[torch.nn.Module], torch.nn.Module],
    other: Callable[[Any], Any],
) -> Call:
    """The call with each leaf replaced: a tensor that is passed twice is replaced by one tensor, modules are copied first."""
    replaced: dict[int, torch.Tensor] = {}

    def replace(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in replaced:
                replaced[id(leaf)] = tensor(leaf)
            return replaced[id(leaf)]
        return module(copy.deepcopy(leaf)) if isinstance(leaf, torch.nn.Module) else other(leaf)

    return Call(*tree_map(replace, tuple(call)))


def detached(call: Call) -> Call:
    """The same call without gradients; it shares the memory of the tensors."""
    return Call(
        *tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tuple(call))
    )


def with_leaves(call: Call) -> Call:
    """The same call with leaves for tensors that were computed, so that gradients end there on host and device alike.

    A view that was made without gradients and asks for them calls itself a leaf, yet gets none.
    """

    def leaf_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (not value.is_leaf or value._is_view()):
            return value.detach().requires_grad_(value.requires_grad)
        return value

    return Call(*tree_map(leaf_of, tuple(call)))


def tensor_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A leaf on ``device`` like ``tensor``: values, strides, offset, lazy conj and neg bits, ``requires_grad``."""
    with torch.no_grad():
        return _leaf_to(tensor.detach(), device).requires_grad_(tensor.requires_grad)


def _leaf_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.to(device)
    if tensor.is_conj():
        return _leaf_to(tensor.conj(), device).conj()
    if tensor.is_neg():
        return torch._neg_view(_leaf_to(torch._neg_view(tensor), device))
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
        return tensor.to(device)
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = tensor.as_strided((elements,), (1,), 0).to(device)
    there = torch.empty(0, dtype=tensor.dtype, device=device)
    return there.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
