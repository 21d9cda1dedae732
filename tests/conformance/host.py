"""What the host makes of a trial: the truth, and what it makes of it under other conditions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .moving import Call, call_to, in_float64, tensor_in_float64
from .target import HOST
from .trial import SEED, Trial, backward, differentiable_outputs, positions, seed_host


@dataclass(frozen=True)
class Truth:
    """What the host did.

    Attributes:
        result: what the function returned.
        arguments: the call's tensors, after it.
        written: positions, among the call's tensors, of those it wrote to.
        returned: for each tensor in the result the position of the argument it is, if it is one.
        cotangents: what backward started from; empty if there is nothing to differentiate.
        gradients: of the differentiable arguments.
        is_random: drew random numbers.
    """

    result: Any
    arguments: tuple[torch.Tensor, ...]
    written: tuple[int, ...]
    returned: tuple[int | None, ...]
    cotangents: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]
    is_random: bool


class DoesNothing(TorchDispatchMode):
    """A dispatch mode that passes every call on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Host:
    """The host's side of a trial; each run is made when first asked for.

    Args:
        trial: what to try.
        there: its arguments on the device, from which they are taken again once the host has written to them.
    """

    def __init__(self, trial: Trial, there: Call) -> None:
        self._trial, self._there = trial, there

    @cached_property
    def truth(self) -> Truth | None:
        """What is right, or ``None`` if the host refuses the call: then nothing is asked of the device."""
        return run_on_host(self._trial, self._trial.call)

    @cached_property
    def under_mode(self) -> Truth | None:
        """The same under a dispatch mode that does nothing."""
        return run_on_host(self._trial, self._fresh(), DoesNothing())

    @cached_property
    def in_float64(self) -> Truth | None:
        """The same in float64, from the same inputs; ``None`` if random, for there float64 draws other numbers."""
        if self.truth is None or self.truth.is_random:
            return None
        cotangents = tuple(tensor_in_float64(cotangent) for cotangent in self.truth.cotangents)
        return run_on_host(self._trial, in_float64(self._fresh()), cotangents=cotangents)

    def _fresh(self) -> Call:
        written = self.truth is not None and self.truth.written
        return call_to(self._there, HOST) if written else self._trial.call


def run_on_host(
    trial: Trial,
    call: Call,
    mode: AbstractContextManager[Any] | None = None,
    cotangents: tuple[torch.Tensor, ...] = (),
) -> Truth | None:
    """Forward and backward, or ``None`` if the host refuses the call; backward starts from ``cotangents`` if given."""
    with mode or nullcontext():
        return _run(trial, call, cotangents)


def _run(trial: Trial, call: Call, cotangents: tuple[torch.Tensor, ...]) -> Truth | None:
    arguments = call.tensors()
    versions = [tensor._version for tensor in arguments]
    seed_host()
    unused = torch.default_generator.get_state()
    try:
        result = trial.function(call.input, *call.args, **call.kwargs)
    except Exception:  # samples that the host cannot compute are in PyTorch's databases too
        return None
    written = tuple(i for i, tensor in enumerate(arguments) if trial.writes or tensor._version != versions[i])
    gradients: tuple[torch.Tensor | None, ...] = ()
    try:
        cotangents = cotangents or make_cotangents(differentiable_outputs(trial, result))
        gradients = backward(trial, call, result, cotangents)
    except Exception:  # no formula for this derivative on the host
        cotangents = ()
    is_random = not torch.equal(unused, torch.default_generator.get_state())
    returned = positions(result, arguments)
    return Truth(result, tuple(arguments), written, returned, cotangents, gradients, is_random)


def make_cotangents(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What backward starts from: no two elements alike, so that a permuted gradient shows."""
    generator = torch.Generator().manual_seed(SEED)
    return tuple(torch.rand(out.shape, dtype=out.dtype, generator=generator) + 0.5 for out in outputs)
