"""One function with one set of arguments, to be run on the host and on the device."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from .moving import Call

SEED = 20


@dataclass(frozen=True)
class Trial:
    """What to try.

    Attributes:
        what: names it in messages.
        function: what to call.
        call: its arguments, on the host.
        for_grad: turns the result into something differentiable.
        values: False for a function whose results are uninitialised.
        writes: True for a function that writes where version counters do not show it (fused optimizers).
    """

    what: str
    function: Callable[..., Any]
    call: Call
    for_grad: Callable[[Any], Any] = lambda result: result
    values: bool = True
    writes: bool = False


def seed_everything(seed: int = SEED) -> None:
    """One seed for every generator that samples draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    seed_host(seed)


def seed_host(seed: int = SEED) -> None:
    """The generator that ops draw from, on the host and on the device alike.

    ``torch.manual_seed`` also visits devices that are absent, and formats a stack trace for each.
    """
    torch.default_generator.manual_seed(seed)


def positions(result: Any, arguments: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    """For each tensor in a result: which argument it is, ``None`` for a new tensor."""
    place = {id(tensor): i for i, tensor in reversed(list(enumerate(arguments)))}
    return tuple(place.get(id(leaf)) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def differentiable_outputs(trial: Trial, result: Any) -> list[torch.Tensor]:
    """The tensors in a result that have a gradient function."""
    leaves = tree_leaves(trial.for_grad(result))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def backward(
    trial: Trial, call: Call, result: Any, cotangents: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the call's differentiable tensors."""
    inputs = [tensor for tensor in call.tensors() if tensor.requires_grad]
    if not inputs or not cotangents:
        return ()
    outputs = differentiable_outputs(trial, result)
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
