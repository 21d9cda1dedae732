"""A trial on the device, compared with what the host made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .comparing import assert_same
from .host import Host, Truth
from .moving import Call, call_to
from .outcome import Outcome
from .target import HOST, INFERENCE, PLAIN, Target
from .trial import Trial, backward, positions, seed_host


def check(trial: Trial, target: Target, outcome: Outcome) -> None:
    """Run a trial on the host, then in every mode in which nothing has failed yet."""
    modes = outcome.open_modes
    if not modes:
        return
    there = [call_to(trial.call, target.device)]
    host = Host(trial, there[0])
    truth = host.truth
    if truth is None:
        return
    outcome.trials += 1
    if truth.written:  # a function that writes needs fresh arguments each time
        pristine = call_to(there[0], HOST)
        there += [call_to(pristine, target.device) for _ in modes]
    for place, mode in enumerate(modes, start=1):
        try:
            run_on_device(trial, there[place % len(there)], host, truth, target, mode)
        except Exception as error:  # whatever goes wrong on the device is this mode's failure
            outcome.fail(mode, trial.what, error)


def run_on_device(trial: Trial, call: Call, host: Host, truth: Truth, target: Target, mode: str) -> None:
    """The same on the device.

    Raises:
        AssertionError: the device's results are not the host's.
    """
    arguments = call.tensors()
    gradients: tuple[torch.Tensor | None, ...] = ()
    differentiates = bool(truth.cotangents) and mode != INFERENCE
    seed_host()
    with target.mode(mode):
        result = trial.function(call.input, *call.args, **call.kwargs)
        if differentiates:
            there = tuple(cotangent.to(target.device) for cotangent in truth.cotangents)
            gradients = backward(trial, call, result, there)

    def assert_same_part(actual: Any, part: Callable[[Truth], Any], device: torch.device, what: str) -> None:
        assert_same(
            actual,
            part(truth),
            device,
            what,
            values=trial.values,
            inputs=arguments,
            precise=lambda: leaves_of(host.in_float64, part),
            under_mode=lambda: None if mode == PLAIN else leaves_of(host.under_mode, part),
        )

    ours = (
        call.names_device() or mode != PLAIN
    )  # a factory without any argument that says where makes a host tensor
    assert_same_part(result, lambda truth: truth.result, target.device if ours else HOST, "result")
    assert positions(result, arguments) == truth.returned, (
        "an argument must be returned where the host returns it"
    )
    for i in truth.written:
        assert_same_part(
            arguments[i], lambda truth: truth.arguments[i], target.device, f"written argument {i}"
        )
    if differentiates:
        assert_same_part(gradients, lambda truth: truth.gradients, target.device, "gradient")


def leaves_of(truth: Truth | None, part: Callable[[Truth], Any]) -> Sequence[Any] | None:
    """The leaves of one part of what the host made."""
    return None if truth is None else tree_leaves(part(truth))
