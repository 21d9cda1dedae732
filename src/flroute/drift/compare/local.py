"""The local error of one call: what the host makes of the same arguments, in float64, and how far the device is from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch

from flroute.drift.compare.kept import on_host
from flroute.drift.compare.run import Local
from flroute.drift.factors import is_factor, judged_by_product
from flroute.drift.formulas import AFTER_A_DRAW, computed_by, is_scratch, same_choice
from flroute.drift.judge import Judge
from flroute.drift.measures import Difference, difference
from flroute.routing.schema import OpFacts, bind, tensors_in, written_tensors
from flroute.torch_compat import map_tensors, outside_dispatch_modes, without_host_autocast

_MAKES_ROOM = ("aten::empty", "aten::new_empty", "aten::_empty", "aten::resize_")


def makes_room(facts: OpFacts) -> bool:
    """Whether an op's result has no values yet."""
    return facts.name.startswith(_MAKES_ROOM)


@dataclass(frozen=True)
class Judgement:
    """What is known of a call: its local error, or why there is none."""

    local: Local | None
    unjudged: str = ""
    loose: str = ""


Pair = tuple[torch.Tensor, torch.Tensor]
"""What a device has made, and what it should be."""


class _Draws(Enum):
    NONE = "draws nothing"
    HOSTS = "draws the host's numbers"
    OWN = "draws numbers of its own"


class JudgedCall:
    """One call, whose arguments are copied before it is made and which the host repeats afterwards.

    Args:
        facts: of the op.
        args: of the call, on any device.
        kwargs: likewise.
        vendor: whose tolerances count; empty for the host.
    """

    def __init__(self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], vendor: str) -> None:
        self._facts, self._args, self._kwargs, self._vendor = facts, args, kwargs, vendor
        self._copies = {id(tensor): on_host(tensor) for tensor in tensors_in(args, kwargs)}
        self._stream = torch.get_rng_state() if facts.is_seeded else None
        self._draws = _Draws.NONE
        self._left = torch.get_rng_state()  # of the host's stream, after the call was repeated

    def judge(self, result: Any) -> Judgement:
        """The local error of ``result`` and of what the call has written.

        Args:
            result: what the device returned.
        """
        if any(copy is None for copy in self._copies.values()):
            return Judgement(None, "has sparse, quantized or wrapped tensors")
        self._draws = self._how_it_draws()
        found = [on_host(t) for t in self._outcome(result, self._args, self._kwargs)]
        values = [value for value in found if value is not None]
        if not values or len(values) != len(found):
            return Judgement(None, "gives nothing that can be compared")
        why = ""
        for wide in (True, False) if self._computes_in_floats(values) else (False,):
            try:
                references = self._repeated(wide)
            except Exception as error:  # noqa: BLE001 -- whatever the host refuses in this dtype is no error of the run
                why = f"the host cannot repeat it: {str(error).splitlines()[0]}"
                continue
            if len(references) != len(values):
                return Judgement(None, "the host's results are another number of tensors")
            loose = self._looseness(values, references)
            pairs = self._firm(values, references) if loose else list(zip(values, references, strict=True))
            pairs = [pair for place, pair in enumerate(pairs) if not is_scratch(self._facts.name, place)]
            return Judgement(self._worst(pairs) if pairs else None, loose=loose)
        return Judgement(None, why)

    def _how_it_draws(self) -> _Draws:
        """Whose random numbers the call has drawn: seen from what it and its repetition leave of the host's stream."""
        if self._stream is None:
            return _Draws.NONE
        after = torch.get_rng_state()
        try:
            self._repeated(wide=False)
        except Exception:  # noqa: BLE001 -- then nothing is known but that the device may have drawn
            return _Draws.OWN
        if torch.equal(self._left, self._stream) and torch.equal(after, self._stream):
            return _Draws.NONE
        return _Draws.HOSTS if torch.equal(self._left, after) else _Draws.OWN

    def _outcome(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """What a call has returned and written, numbers as tensors, each tensor once."""
        numbers = [result] if isinstance(result, bool | int | float | complex) else []
        returned: list[torch.Tensor] = [torch.tensor(n, device="cpu") for n in numbers]
        map_tensors(returned.append, result)
        return list({id(t): t for t in [*returned, *written_tensors(self._facts, args, kwargs)]}.values())

    def _looseness(self, values: list[torch.Tensor], references: list[torch.Tensor]) -> str:
        """Why other results than the host's are as right; empty if they are not."""
        if self._draws is _Draws.OWN:
            return "draws other random numbers than the host; model.eval() turns dropout off"
        if self._reordered(values, references):
            return "puts equal elements in another order, which is as right"
        return "finds other factors, which are as right" if self._refactored(values, references) else ""

    def _firm(self, values: list[torch.Tensor], references: list[torch.Tensor]) -> list[Pair]:
        """Those results that are right or wrong all the same: elements if not their places, what a drawn mask leaves."""
        if self._draws is not _Draws.OWN:
            pairs = zip(values, references, strict=True)
            return [pair for pair in pairs if pair[0].dtype is not torch.int64]
        made_of = AFTER_A_DRAW.get(self._facts.name)
        if made_of is None:
            return []
        return list(zip(values, made_of(*self._wide_args(), result=values), strict=True))

    def _wide_args(self) -> list[Any]:
        args = [self._copies[id(arg)] if isinstance(arg, torch.Tensor) else arg for arg in self._args]
        return [_widened(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]

    def _reordered(self, values: list[torch.Tensor], references: list[torch.Tensor]) -> bool:
        """Whether only places of elements differ, and equal elements are there."""
        bound = {
            name: self._copies[id(value)] if isinstance(value, torch.Tensor) else value
            for name, value in bind(self._facts, self._args, self._kwargs).items()
        }
        other = [
            (v, r)
            for v, r in zip(values, references, strict=True)
            if v.dtype is torch.int64 and not torch.equal(v, r)
        ]
        return bool(other) and all(same_choice(self._facts.name, bound, v, r) for v, r in other)

    def _refactored(self, values: list[torch.Tensor], references: list[torch.Tensor]) -> bool:
        """Whether factors differ by more than rounding."""
        found = [
            difference(v, r)
            for place, (v, r) in enumerate(zip(values, references, strict=True))
            if is_factor(self._facts.name, place) and v.shape == r.shape
        ]
        return any(d.max_abs > _OTHERS * d.scale for d in found)

    def _computes_in_floats(self, values: list[torch.Tensor]) -> bool:
        """Whether float64 tells more than the dtype itself: not for casts, draws and truth values."""
        if self._draws is not _Draws.NONE or self._facts.schema.name in ("aten::_to_copy", "aten::copy_"):
            return False
        return any(value.is_floating_point() or value.is_complex() for value in values)

    def _repeated(self, wide: bool) -> list[torch.Tensor]:
        """What the host makes of the same arguments, as ``_outcome`` lists it."""
        copies = {
            key: _widened(copy) if wide else copy.clone()
            for key, copy in self._copies.items()
            if copy is not None
        }

        def to_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return copies[id(value)]
            if isinstance(value, list | tuple):
                return type(value)(map(to_host, value))
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return _WIDE.get(value, value) if wide and isinstance(value, torch.dtype) else value

        args = tuple(map(to_host, self._args))
        kwargs = {name: to_host(value) for name, value in self._kwargs.items()}
        with outside_dispatch_modes(), torch.no_grad(), without_host_autocast(), _stream_from(self._stream):
            result = computed_by(self._facts.op)(*args, **kwargs)
            if self._stream is not None:
                self._left = torch.get_rng_state()
        return self._outcome(result, args, kwargs)

    def _worst(self, pairs: list[Pair]) -> Local:
        inputs = [copy for copy in self._copies.values() if copy is not None]
        made = [_widened(value) for value, _ in pairs]
        found = []
        for place, (value, reference) in enumerate(pairs):
            if value.shape != reference.shape:
                wrong = Difference(mismatched_nonfinite=value.numel(), numel=value.numel())
                return Local(
                    wrong, math.inf, f"of shape {list(reference.shape)}", "flroute: shapes are exact"
                )
            moved = partial(self._hosts_own_error, reference, place)
            verdict = _JUDGE.judge(self._facts, self._vendor, value, reference, inputs, moved)
            read = verdict.reading
            if read.excess > 1 and is_factor(self._facts.name, place):
                read, pairs[place] = judged_by_product(
                    self._facts.name, self._wide_args(), made, verdict.tolerance
                ) or (read, pairs[place])
            found.append((read.excess, place, verdict.tolerance))
        excess, place, allowed = max(found, key=lambda item: item[0])
        in_words = f"rtol {allowed.rtol:.1e}, atol {allowed.atol:.1e}"
        return Local(difference(*pairs[place]), excess, in_words, allowed.source)

    def _hosts_own_error(self, reference: torch.Tensor, place: int) -> list[torch.Tensor]:
        """How far the host is off in the same dtype: sums that cancel have no better answer there."""
        if self._draws is not _Draws.NONE:  # it would draw others
            return []
        try:
            same = self._repeated(wide=False)[place]
        except Exception:  # noqa: BLE001 -- the host refuses this dtype: then float64 alone decides
            return []
        return [torch.nan_to_num(same - reference, posinf=0.0, neginf=0.0)]


_JUDGE = Judge(roundings=1.0)
_OTHERS = 0.05
"""Of the largest element: what rounding does not make of a factor."""

_WIDE: dict[Any, torch.dtype] = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wide = _WIDE.get(tensor.dtype)
    return tensor.clone() if wide is None else tensor.to(wide)


@contextmanager
def _stream_from(state: torch.Tensor | None) -> Iterator[None]:
    """Draw the numbers that come after ``state``, and leave the host's generator as it is."""
    if state is None:
        yield
        return
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)
