"""One function with one set of arguments: run once on the host, then on the device, and compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from .comparing import assert_same
from .moving import Call, call_to
from .outcome import Outcome
from .target import HOST, INFERENCE, PLAIN, Target

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


@dataclass(frozen=True)
class Truth:
    """What the host did.

    Attributes:
        result: what the function returned.
        written: positions, among the call's tensors, of those it wrote to.
        returned: for each tensor in the result the position of the argument it is, if it is one.
        cotangents: what backward started from; empty if there is nothing to differentiate.
        gradients: of the differentiable arguments.
    """

    result: Any
    written: tuple[int, ...]
    returned: tuple[int | None, ...]
    cotangents: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]


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


def check(trial: Trial, target: Target, outcome: Outcome) -> None:
    """Run a trial on the host, then in every mode in which nothing has failed yet."""
    modes = outcome.open_modes
    if not modes:
        return
    there = [call_to(trial.call, target.device)]
    truth = run_on_host(trial)
    if truth is None:
        return
    outcome.trials += 1
    if truth.written:  # a function that writes needs fresh arguments each time
        pristine = call_to(there[0], HOST)
        there = [call_to(pristine, target.device) for _ in modes]
    for place, mode in enumerate(modes):
        try:
            run_on_device(trial, there[place % len(there)], truth, target, mode)
        except Exception as error:  # whatever goes wrong on the device is this mode's failure
            outcome.fail(mode, trial.what, error)


def run_on_host(trial: Trial) -> Truth | None:
    """The truth, or ``None`` if the host refuses the call: then nothing is asked of the device."""
    arguments = trial.call.tensors()
    versions = [tensor._version for tensor in arguments]
    seed_host()
    try:
        result = trial.function(trial.call.input, *trial.call.args, **trial.call.kwargs)
    except Exception:  # samples that the host cannot compute are in PyTorch's databases too
        return None
    written = tuple(i for i, tensor in enumerate(arguments) if trial.writes or tensor._version != versions[i])
    cotangents: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    try:
        cotangents = make_cotangents(differentiable_outputs(trial, result))
        gradients = backward(trial, trial.call, result, cotangents)
    except Exception:  # no formula for this derivative on the host
        cotangents = ()
    return Truth(result, written, positions(result, arguments), cotangents, gradients)


def run_on_device(trial: Trial, call: Call, truth: Truth, target: Target, mode: str) -> None:
    """The same on the device.

    Raises:
        AssertionError: the device's results are not the host's.
    """
    arguments = call.tensors()
    gradients: tuple[torch.Tensor | None, ...] = ()
    seed_host()
    with target.mode(mode):
        result = trial.function(call.input, *call.args, **call.kwargs)
        if truth.cotangents and mode != INFERENCE:
            there = tuple(cotangent.to(target.device) for cotangent in truth.cotangents)
            gradients = backward(trial, call, result, there)
    ours = (
        call.names_device() or mode != PLAIN
    )  # a factory without any argument that says where makes a host tensor
    assert_same(
        result, truth.result, target.device if ours else HOST, "result", values=trial.values, inputs=arguments
    )
    assert positions(result, arguments) == truth.returned, (
        "an argument must be returned where the host returns it"
    )
    host_arguments = trial.call.tensors()
    for i in truth.written:
        assert_same(
            arguments[i], host_arguments[i], target.device, f"written argument {i}", values=trial.values
        )
    if truth.cotangents and mode != INFERENCE:
        assert_same(gradients, truth.gradients, target.device, "gradient", inputs=arguments)


def positions(result: Any, arguments: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    """For each tensor in a result: which argument it is, ``None`` for a new tensor."""
    place = {id(tensor): i for i, tensor in reversed(list(enumerate(arguments)))}
    return tuple(place.get(id(leaf)) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


def differentiable_outputs(trial: Trial, result: Any) -> list[torch.Tensor]:
    """The tensors in a result that have a gradient function."""
    leaves = tree_leaves(trial.for_grad(result))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def make_cotangents(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What backward starts from: no two elements alike, so that a permuted gradient shows."""
    generator = torch.Generator().manual_seed(SEED)
    return tuple(torch.rand(out.shape, dtype=out.dtype, generator=generator) + 0.5 for out in outputs)


def backward(
    trial: Trial, call: Call, result: Any, cotangents: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the call's differentiable tensors."""
    inputs = [tensor for tensor in call.tensors() if tensor.requires_grad]
    if not inputs or not cotangents:
        return ()
    outputs = differentiable_outputs(trial, result)
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
