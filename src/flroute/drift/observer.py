"""One call, computed twice: by the device, as ever, and by a reference, on the same inputs and on those it carries itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch

from flroute.device.table import DEVICE_TYPE, device_at
from flroute.drift.carried import Carried
from flroute.drift.contract import Contract
from flroute.drift.host_values import is_dense, map_values, seen_from_host, tensors_of
from flroute.drift.judge import Judge, Verdict, moved_results
from flroute.drift.ledger import Branch, Call, Ledger, NonFinite, Place, ShadowRow
from flroute.drift.measures import Difference, difference
from flroute.drift.one_op import Saver
from flroute.drift.reference import Reference, without_modes
from flroute.drift.tolerances import Reading, Tolerance, reading
from flroute.routing.schema import OpFacts, facts_of, tensors_in, written_tensors
from flroute.torch_compat import increment_versions, is_overload, storage_key, version_of

Args = tuple[Any, ...]
Named = dict[str, Any]


class _Kind(Enum):
    PASSED = "nothing is computed"
    DRAWN = "random: the reference takes what the device has drawn"
    JUDGED = "computed by the reference, too"


_PASSED = ("empty", "new_empty", "_efficientzerotensor", "record_stream", "_pin_memory", "is_pinned", "resize_")
_DROPOUTS = frozenset({"aten::native_dropout"})


@cache
def _kind_of(op: Any) -> _Kind:
    if not is_overload(op) or op.namespace != "aten":
        return _Kind.PASSED
    facts = facts_of(op)
    name = str(facts.schema.name).partition("::")[2]
    if facts.is_metadata or name.startswith(_PASSED):
        return _Kind.PASSED
    if facts.is_seeded:
        return _Kind.DRAWN
    return _Kind.JUDGED


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

    def call(self, op: Any, args: Args, kwargs: Named) -> Any:
        """Run ``op`` on device tensors; the result is the device's."""
        self._ask_for_overdue()
        kind = _kind_of(op)
        if kind is _Kind.PASSED:
            return op(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        ours = [t for t in tensors if t.device.type == DEVICE_TYPE]
        if not ours or not all(map(is_dense, tensors)):
            return op(*args, **kwargs)
        if kind is _Kind.DRAWN and op.name() not in _DROPOUTS:
            return self._drawn(op, args, kwargs, tensors)
        return _Observed(self, facts_of(op), args, kwargs, tensors, ours).run()

    def close(self) -> None:
        """The block is over: what is carried is let go of, and what is still due is asked for."""
        self._ask_for_overdue()
        self.carried.clear()

    def _ask_for_overdue(self) -> None:
        if self.contract is not None:
            self.ledger.violate(self.contract.overdue())

    def _drawn(self, op: Any, args: Args, kwargs: Named, tensors: list[torch.Tensor]) -> Any:
        """What the device draws is the reference's, too: seeds are aligned by taking over the draw."""
        self.ledger.drawn.add(op.name())
        result = op(*args, **kwargs)
        for tensor in (*written_tensors(facts_of(op), args, kwargs), *tensors_of(result)):
            self.carried.drop(tensor)
        return result


class _Observed:
    """One call under observation."""

    def __init__(
        self,
        observer: Observer,
        facts: OpFacts,
        args: Args,
        kwargs: Named,
        tensors: list[torch.Tensor],
        ours: list[torch.Tensor],
    ) -> None:
        self.observer, self.facts, self.args, self.kwargs = observer, facts, args, kwargs
        self.tensors, self.ours = tensors, ours
        self.carried, self.reference, self.ledger = observer.carried, observer.reference, observer.ledger
        self.written = written_tensors(facts, args, kwargs)
        self.place = observer.here()
        self.row = self.ledger.row(facts.name, self.place)
        self.seen: dict[int, torch.Tensor] = {}  # inputs as the reference reads them
        self.functional = facts.functional or facts.functional_of_list

    # -- the call

    def run(self) -> Any:
        contract = self.observer.contract
        with without_modes():
            before = contract.before(self.facts, self.args, self.kwargs) if contract is not None else None
            exact = self._exact()
            parallel = self._carried_results() if any(map(self.carried.has, self.ours)) else None
        versions = [_version(t) for t in self.written]
        try:
            result = self.facts.op(*self.args, **self.kwargs)
        except BaseException:  # the reference may have written what the device has not
            for tensor in self.written:
                self.carried.drop(tensor)
            raise
        self._count_versions(versions)
        with without_modes():
            self._compare(result, exact, parallel)
        if contract is not None and before is not None:
            self.ledger.violate(contract.after(before, result, self.place))
        return result

    def _count_versions(self, versions: list[int | None]) -> None:
        """PyTorch bumps no version counter of a list under a dispatch mode; a session does, unless it is beneath others."""
        if self.facts.bumps_no_version:
            unmoved = [t for t, v in zip(self.written, versions, strict=True) if v is not None and _version(t) == v]
            increment_versions(unmoved, None)

    # -- the reference

    def _exact(self) -> list[torch.Tensor] | None:
        """What the reference makes of the device's own inputs: tensors it returns, or those it writes."""
        try:
            return self._compute(self._read)
        except Exception as error:  # noqa: BLE001 -- whatever the reference cannot do is said; the device goes its own way
            self.row.unjudged = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return None

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self.seen.get(id(tensor))
        if found is None:
            host = seen_from_host(tensor)
            written = any(tensor is w for w in self.written) and self.functional is None
            found = host.to(self.reference.dtype_for(tensor.dtype), copy=written)
            self.seen[id(tensor)] = found
        return found

    def _read_carried(self, tensor: torch.Tensor) -> torch.Tensor:
        carried = self.carried.view(tensor) if tensor.device.type == DEVICE_TYPE else None
        return self._read(tensor) if carried is None else carried

    def _compute(self, read: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        args = map_values(read, self.args)
        if self.functional is None:
            kwargs = {name: map_values(read, value) for name, value in self.kwargs.items()}
            result = self.reference.run(self.facts.op, args, kwargs)
            return tensors_of(result) + [read(t) for t in self.written if not self.facts.written]
        outs = self.facts.out_names
        kwargs = {name: map_values(read, v) for name, v in self.kwargs.items() if name not in outs}
        if self.facts.out_says_dtype and outs:
            kwargs["dtype"] = self.written[0].dtype
        return tensors_of(self.reference.run(self.functional, args, kwargs))

    def _carried_results(self) -> list[torch.Tensor] | None:
        try:
            return self._compute(self._read_carried)
        except Exception:  # noqa: BLE001 -- as above; where only this one fails, its values have taken another way
            return None

    # -- what came of it

    def _compare(self, result: Any, exact: list[torch.Tensor] | None, parallel: list[torch.Tensor] | None) -> None:
        made = tensors_of(result) if not self.written or self.functional is None else self._written_in_order(result)
        if not made and not isinstance(result, torch.Tensor):
            self._compare_numbers(result)
            return
        if self.functional is None and self.facts.written == () and self.written:
            made = made + self.written
        worst = _Worst()
        if exact is not None and len(exact) == len(made):
            for place, (ours, theirs) in enumerate(zip(made, exact, strict=True)):
                self._compare_one(place, ours, theirs, worst)
        elif exact is not None:
            self.row.unjudged = f"the reference makes {len(exact)} results, the device {len(made)}"
        if parallel is None or len(parallel) != len(made):
            parallel = exact if parallel is None and not any(map(self.carried.has, self.ours)) else None
        self._carry_on(made, parallel, worst)
        self._note(worst)

    def _written_in_order(self, result: Any) -> list[torch.Tensor]:
        return list(self.written) if self.written else tensors_of(result)

    def _compare_one(self, place: int, ours: torch.Tensor, exact: torch.Tensor, worst: _Worst) -> None:
        if ours.shape != exact.shape:
            worst.add(Reading(float("inf"), 0.0, 0.0), Tolerance(0.0, 0.0, "shapes"), None)
            return
        if not is_dense(ours):
            return
        value = seen_from_host(ours)
        verdict = self._verdict(place, value, exact)
        worst.add(*verdict, (value, exact))
        if not verdict.reading.finite:
            self._note_nonfinite(exact)

    def _verdict(self, place: int, value: torch.Tensor, exact: torch.Tensor) -> Verdict:
        def compute(read: dict[int, torch.Tensor]) -> Any:
            return self._compute(lambda tensor: read[id(tensor)])

        def moved() -> list[torch.Tensor]:
            if self.functional is None and self.written:
                return []  # its inputs are overwritten
            keys = list(self.seen)
            return moved_results(
                lambda args: compute(dict(zip(keys, args, strict=True))), list(self.seen.values()), exact, place
            )

        vendor = device_at(self.ours[0].device.index).vendor
        return self.observer.judge.judge(
            self.facts.name, vendor, value, exact, list(self.seen.values()), moved
        )

    def _carry_on(self, made: list[torch.Tensor], parallel: list[torch.Tensor] | None, worst: _Worst) -> None:
        """What the reference makes of its own inputs is its value from here on."""
        for place, ours in enumerate(made):
            theirs = parallel[place] if parallel is not None and place < len(parallel) else None
            if theirs is None or theirs.shape != ours.shape:
                if theirs is not None:
                    self._note_branch(f"{list(ours.shape)}", f"{list(theirs.shape)}")
                self.carried.drop(ours)
                continue
            if not is_dense(ours):
                continue
            found = reading(seen_from_host(ours), theirs, _ANY)
            worst.accumulate(found, (ours, theirs))
            if found.max_abs == 0 and found.excess == 0 and not self.carried.has(ours):
                continue  # the same: nothing needs to be kept
            self.carried.adopt(ours, self._of_its_own(theirs))

    def _of_its_own(self, values: torch.Tensor) -> torch.Tensor:
        """Not what another tensor is made of."""
        key = storage_key(values.untyped_storage())
        shared = any(key == storage_key(t.untyped_storage()) for t in self.seen.values())
        return values.clone() if shared or values.untyped_storage().nbytes() != values.numel() * values.itemsize else values

    def _compare_numbers(self, result: Any) -> None:
        """A number that the program looks at: what would the reference have said?"""
        worst = _Worst()
        for tensor in self.ours:
            theirs = self.carried.view(tensor)
            if theirs is not None and tensor.numel() == 1:
                value = theirs.reshape(()).item()
                exact = isinstance(result, bool | int)
                if exact and value != result:
                    self._note_branch(repr(result), repr(value))
                host = seen_from_host(tensor)
                worst.accumulate(reading(host, theirs.reshape(host.shape), _ANY), (tensor, theirs))
        if self.facts.name == "aten::equal" and any(map(self.carried.has, self.ours)):
            value = torch.equal(*(self._read_carried(t) for t in self.tensors))
            if value != result:
                self._note_branch(repr(result), repr(value))
        self._note(worst)

    # -- into the ledger

    def _note(self, worst: _Worst) -> None:
        self.row.tolerance = self.row.tolerance or worst.tolerance
        if worst.pair is not None and (worst.excess > self.row.excess or not self.row.local.numel):
            self.row.excess, self.row.tolerance = worst.excess, worst.tolerance
            self.row.local = difference(*worst.pair)
        found = worst.parallel
        if found is not None and (
            worst.accumulated > self.row.accumulated.max_abs or not self.row.accumulated.numel
        ):
            self.row.accumulated = _difference_seen(*found)
        call = Call(
            self.ledger.count,
            self.facts.name,
            self.place,
            worst.excess,
            worst.local,
            worst.accumulated,
            worst.scale,
        )
        self.ledger.note(call, self.row)
        if call.excess > 1 and self.observer.saver is not None and self.facts.name not in self.ledger.scripts:
            self.ledger.scripts[self.facts.name] = self._save()

    def _note_branch(self, device: str, reference: str) -> None:
        self.ledger.branches.append(Branch(self.facts.name, self.place, device, reference))

    def _note_nonfinite(self, exact: torch.Tensor) -> None:
        if self.ledger.first_nonfinite is not None or not all(map(_is_finite, self.seen.values())):
            return
        script = self._save() if self.observer.saver is not None else None
        there = not _is_finite(exact)
        self.ledger.first_nonfinite = NonFinite(self.facts.name, self.place, there, script)

    def _save(self) -> str:
        assert self.observer.saver is not None  # noqa: S101
        inputs = {id(t): self.seen[id(t)].to(t.dtype) for t in self.tensors if id(t) in self.seen}

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            return inputs.get(id(tensor), seen_from_host(tensor))

        args = map_values(kept, self.args)
        kwargs = {name: map_values(kept, value) for name, value in self.kwargs.items()}
        return self.observer.saver.save(self.facts.name, args, kwargs, self.ours[0].device)


class _Worst:
    """The worst of a call's results."""

    def __init__(self) -> None:
        self.excess = self.local = self.accumulated = self.scale = 0.0
        self.tolerance: Tolerance | None = None
        self.pair: tuple[torch.Tensor, torch.Tensor] | None = None
        self.parallel: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, found: Reading, tolerance: Tolerance, pair: Any) -> None:
        self.local = max(self.local, found.max_abs)
        if found.excess > self.excess or self.tolerance is None:
            self.excess, self.tolerance, self.pair = found.excess, tolerance, pair

    def accumulate(self, found: Reading, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        if found.max_abs > self.accumulated or self.parallel is None:
            self.parallel = pair
        self.accumulated = max(self.accumulated, found.max_abs)
        self.scale = max(self.scale, found.scale)


_ANY = Tolerance(1.0, 1.0, "")


def _difference_seen(ours: torch.Tensor, theirs: torch.Tensor) -> Difference:
    return difference(seen_from_host(ours), theirs)


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all()) if tensor.is_floating_point() or tensor.is_complex() else True


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else version_of(tensor)
