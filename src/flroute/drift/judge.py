"""Whether a result is as good as it can be asked to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from flroute.drift.host_values import map_values, tensors_of
from flroute.drift.sizes import reduction_size
from flroute.drift.tolerances import Extent, Reading, Tolerance, class_of, reading, tolerance_for
from flroute.registry import load
from flroute.routing.schema import OpFacts

_PROBES = 2
_ALLOWED_PROBES = 4.0
"""How many times what one rounding of the inputs makes of the result a kernel may be away."""

_EPS32 = torch.finfo(torch.float32).eps


class Verdict(NamedTuple):
    """Of a result: what was found, and what is allowed."""

    reading: Reading
    tolerance: Tolerance


class Judge:
    """Holds results against those of a reference.

    Args:
        roundings: how many kernels' errors may be between them: two, if the reference computes in no higher precision.
    """

    def __init__(self, roundings: float) -> None:
        self._roundings = roundings
        self._allowed: dict[tuple[str, str, torch.dtype, int], Tolerance] = {}

    def judge(
        self,
        facts: OpFacts,
        vendor: str,
        value: torch.Tensor,
        exact: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        moved: Callable[[], list[torch.Tensor]],
        extent: Extent | None = None,
    ) -> Verdict:
        """The worst element of ``value``, whose exact values are ``exact``.

        Args:
            facts: of the op that made it.
            vendor: on whose device.
            value: on the host, in the device's dtype.
            exact: the same, by the reference.
            inputs: of the op.
            moved: how far each element of the exact result moves if the inputs are off by a rounding; asked only where the
                result is beyond the tolerance.
            extent: of both values, if it is known already.
        """
        kind = class_of(facts.name)
        size = reduction_size(kind, inputs, [exact])
        allowed = self._tolerance_of(facts, vendor, value.dtype, size)
        found = reading(value, exact, allowed, extent=extent)
        if found.excess > 1 and value.is_floating_point() and found.excess != float("inf"):
            noise = max((float(m.abs().max()) for m in moved() if m.numel()), default=0.0)
            if noise > 0:
                noise *= _ALLOWED_PROBES * kind.growth_of(size)
                found = reading(value, exact, allowed, noise=noise, extent=extent)
        return Verdict(found, allowed)

    def _tolerance_of(self, facts: OpFacts, vendor: str, dtype: torch.dtype, size: int) -> Tolerance:
        key = (facts.name, vendor, dtype, size)
        found = self._allowed.get(key)
        if found is None:
            split = facts.is_composite or facts.name in load().decompositions.get(vendor, {})
            found = tolerance_for(facts.name, dtype, size, vendor, split=split)
            self._allowed[key] = found = found if self._roundings == 1 else found.times(self._roundings)
        return found


def moved_results(
    compute: Callable[[Any], Any], args: Any, exact: torch.Tensor, place: int
) -> list[torch.Tensor]:
    """How far a result moves when each number among the inputs is off by a rounding, up or down by chance.

    Args:
        compute: the op, in the reference's precision.
        args: its arguments.
        exact: what it makes of them.
        place: which of the op's results that is.
    """
    generator = np.random.default_rng(0)

    def off(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        eps = max(_EPS32, torch.finfo(tensor.dtype).eps) if tensor.dtype is not torch.float64 else _EPS32
        bits = np.unpackbits(np.frombuffer(generator.bytes(tensor.numel() // 8 + 1), np.uint8))
        signs = torch.from_numpy(bits[: tensor.numel()]).reshape(tensor.shape).to(tensor.dtype) * 2 - 1
        return torch.addcmul(tensor, tensor, signs, value=eps)

    found = []
    for _ in range(_PROBES):
        results = tensors_of(compute(map_values(off, args)))
        if place < len(results) and results[place].shape == exact.shape:
            found.append(torch.nan_to_num(results[place] - exact, posinf=0.0, neginf=0.0))
    return found
