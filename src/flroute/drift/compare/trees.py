"""Tensors inside whatever a model takes or returns: lists, dictionaries, dataclasses, and these inside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from flroute.torch_compat import map_tensors


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor with where it stands: ``logits``, ``0.hidden``; what is no tensor is passed over.

    Example:
        >>> import torch
        >>> [name for name, _ in named_tensors({"loss": torch.ones(1), "rest": (None, 3, torch.ones(2))})]
        ['loss', 'rest.2']
    """
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    for step, part in _parts(value):
        yield from named_tensors(part, f"{name}.{step}" if name else step)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(step), part) for step, part in value.items()]
    if isinstance(value, list | tuple):
        return [(str(step), part) for step, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return []


def mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same with each tensor replaced; of dataclasses and mappings that PyTorch does not know, a copy with new fields."""
    if is_dataclass(value) and not isinstance(value, type) and not isinstance(value, Mapping):
        copied = object.__new__(type(value))
        for field in fields(value):
            object.__setattr__(copied, field.name, mapped(function, getattr(value, field.name)))
        return copied
    if type(value) in (list, tuple):
        return type(value)(mapped(function, part) for part in value)
    if type(value) is dict:
        return {step: mapped(function, part) for step, part in value.items()}
    return map_tensors(function, value)
