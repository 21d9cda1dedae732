"""Calls, computed twice: by the device, as ever, and by a reference."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.drift.formulas import AFTER_A_DRAW
from flroute.drift.host_values import is_dense, tensors_of
from flroute.drift.judge import Judge
from flroute.drift.reference import Reference
from flroute.drift.shadow.carried import Carried
from flroute.drift.shadow.contract import Contract
from flroute.drift.shadow.ledger import Ledger, Place
from flroute.drift.shadow.observed import Observed
from flroute.drift.shadow.one_op import Saver
from flroute.routing.schema import bind, facts_of, tensors_in, written_tensors
from flroute.torch_compat import is_overload


class _Kind(Enum):
    PASSED = "nothing is computed"
    DRAWN = "may be random: then the reference takes what the device has drawn"
    JUDGED = "computed by the reference, too"


_PASSED = (
    "empty",
    "new_empty",
    "_efficientzerotensor",
    "record_stream",
    "_pin_memory",
    "is_pinned",
    "resize_",
)


@cache
def _kind_of(op: Any) -> _Kind:
    if not is_overload(op) or op.namespace != "aten":
        return _Kind.PASSED
    facts = facts_of(op)
    name = str(facts.schema.name).partition("::")[2]
    if facts.is_metadata or name.startswith(_PASSED):
        return _Kind.PASSED
    return _Kind.DRAWN if facts.is_seeded and facts.name not in AFTER_A_DRAW else _Kind.JUDGED


def _draws(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an op that may draw does: attention without dropout does not, nor what is not in training."""
    given = {a.name: a.default_value for a in facts_of(op).arguments} | bind(facts_of(op), args, kwargs)
    return given.get("dropout_p", 1.0) != 0 and given.get("training", True) is not False


class Observer:
    """Runs calls and notes how far the device is from the reference.

    Args:
        reference: what values are held against.
        here: tells where a call is made.
        contract: what is checked beside values, if anything.
        saver: keeps the inputs of calls that went wrong, if they are to be kept.

    Attributes:
        ledger: what was found.
        carried: the reference's values of what is on the device.
        judge: says what is wrong.
    """

    def __init__(
        self,
        reference: Reference,
        here: Callable[[], Place],
        contract: Contract | None = None,
        saver: Saver | None = None,
    ) -> None:
        self.reference, self.here, self.contract, self.saver = reference, here, contract, saver
        self.ledger = Ledger()
        self.carried = Carried(reference.dtype_for)
        self.judge = Judge(reference.roundings)

    def __deepcopy__(self, _memo: Any) -> Observer:
        """A copied tensor goes on in the same record."""
        return self

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``op`` on device tensors; the result is the device's."""
        self._ask_for_overdue()
        kind = _kind_of(op)
        if kind is _Kind.PASSED:
            return op(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        ours = [t for t in tensors if t.device.type == DEVICE_TYPE]
        if not ours or not all(map(is_dense, tensors)):
            return op(*args, **kwargs)
        if kind is _Kind.DRAWN and _draws(op, args, kwargs):
            return self._drawn(op, args, kwargs)
        return Observed(self, facts_of(op), args, kwargs, ours).run()

    def close(self) -> None:
        """It is over: what is carried is let go of, and what is still due is asked for."""
        for _ in range(2):
            self._ask_for_overdue()
        self.carried.clear()

    def _ask_for_overdue(self) -> None:
        if self.contract is not None:
            self.ledger.violate(self.contract.overdue())

    def _drawn(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Seeds are aligned by taking over the draw: what the device has drawn is the reference's, too."""
        self.ledger.drawn.add(op.name())
        result = op(*args, **kwargs)
        written: list[torch.Tensor] = written_tensors(facts_of(op), args, kwargs)
        for tensor in (*written, *tensors_of(result)):
            self.carried.drop(tensor)
        return result
