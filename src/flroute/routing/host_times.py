"""How long the host takes for the calls that a device serves: measured once per signature, on copies of the arguments."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from flroute.device.tensors import is_on_device, without_repeats
from flroute.routing import transfers
from flroute.routing.expected import host_copy
from flroute.routing.schema import OpFacts, with_numbers_as_tensors
from flroute.routing.tallies import Shapes, shapes_in

_ROUNDS = 5
_ENOUGH = 0.05
"""Seconds after which no further round is measured."""

Signature = tuple[str, tuple[str, ...], Shapes]


class HostTimes:
    """Seconds of the host's fastest call, by op, dtypes and shapes; ``None`` where the host cannot say."""

    def __init__(self) -> None:
        self._seconds: dict[Signature, float | None] = {}

    def of(self, op: str, dtypes: tuple[str, ...], shapes: Shapes) -> float | None:
        """What was measured for such a call."""
        return self._seconds.get((op, dtypes, shapes))

    def measure(
        self, facts: OpFacts, dtypes: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Time the host for this call, unless one with its signature was timed. Nothing is written, and nothing drawn."""
        inputs = {name: value for name, value in kwargs.items() if name not in facts.out_names}
        key = (facts.name, dtypes, tuple(map(tuple, shapes_in(args, inputs))))
        if key not in self._seconds:
            self._seconds[key] = _fastest(facts, args, kwargs)


def beside_host(
    plan: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    facts: OpFacts,
    dtypes: tuple[str, ...],
    all_times: tuple[HostTimes, ...],
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """``plan``, the host being timed before the first call of each signature, as the call may overwrite its arguments."""
    if not all_times:
        return plan

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for times in all_times:
            times.measure(facts, dtypes, args, kwargs)
        return plan(args, kwargs)

    return run


def _fastest(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    clock, fastest = time.perf_counter, None
    given = with_numbers_as_tensors(facts, args)
    began = clock()
    with torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself is going to warn
        for _ in range(_ROUNDS):
            inputs = [_copied(value) for value in given]
            named = {name: _copied(value) for name, value in kwargs.items()}
            start = clock()
            try:
                facts.op(*inputs, **named)
            except Exception:  # noqa: BLE001 -- whatever the host says, the call on the device goes its own way
                return None
            seconds = clock() - start
            fastest = seconds if fastest is None else min(fastest, seconds)
            if clock() - began > _ENOUGH:
                break
    return fastest


def _copied(value: Any) -> Any:
    """The argument for a call on the host; its bytes are not counted: no call of the program moves them."""
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    if not is_on_device(value) or value.is_conj() or not value.numel():
        return host_copy(value)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    transfers.move(without_repeats(value), without_repeats(made), transfers.Moved())
    return made
