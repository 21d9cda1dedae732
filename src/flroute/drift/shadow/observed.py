"""One call under observation: its local error on the device's inputs, its accumulated one on what the reference carries."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from flroute.device.table import DEVICE_TYPE, device_at
from flroute.drift.factors import is_factor, judged_by_product
from flroute.drift.formulas import AFTER_A_DRAW, is_scratch, same_choice
from flroute.drift.host_values import is_dense, map_values, seen_from_host, tensors_of
from flroute.drift.judge import Verdict, moved_results
from flroute.drift.measures import Difference, difference
from flroute.drift.reference import Read, without_modes
from flroute.drift.shadow.ledger import Branch, Call, NonFinite
from flroute.drift.tolerances import Extent, Reading, Tolerance, class_of, extent_of, looked_at
from flroute.routing.schema import OpFacts, bind, tensors_in, written_tensors
from flroute.torch_compat import increment_versions, storage_key, version_of

if TYPE_CHECKING:
    from flroute.drift.shadow.observer import Observer

Pair = tuple[torch.Tensor, torch.Tensor]
"""A value on the host, and what it should be."""

_MUCH_MORE = 2.0


class Observed:
    """One call.

    Args:
        observer: whose reference computes it, too.
        facts: of the op.
        args: of the call.
        kwargs: of the call.
        ours: tensors on a device among them.
    """

    def __init__(
        self,
        observer: Observer,
        facts: OpFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ours: list[torch.Tensor],
    ) -> None:
        self._observer, self._facts, self._args, self._kwargs = observer, facts, args, kwargs
        self._ours = ours
        self._carried, self._ledger = observer.carried, observer.ledger
        self._written = written_tensors(facts, args, kwargs)
        self._functional = facts.functional or facts.functional_of_list
        """What makes new results where this op writes: then the reference overwrites none of its inputs."""
        self._overwritten = () if self._functional is not None else tuple(map(id, self._written))
        """Inputs that the reference writes."""
        self._place = observer.here()
        self._unjudged: str | None = None
        self._made: list[torch.Tensor] = []
        self._seen: dict[int, torch.Tensor] = {}  # inputs of the device as the reference reads them
        self._as_is: dict[
            int, torch.Tensor
        ] = {}  # the same in the device's dtypes, where these are asked for
        self._read_storages: set[int] | None = None  # of both, once all is read
        self._worst = _Worst()

    def run(self) -> Any:
        """Make the call on the device; what is found goes into the ledger."""
        contract = self._observer.contract
        draws = self._facts.name in AFTER_A_DRAW
        exact = parallel = None
        with without_modes():
            before = None if contract is None else contract.before(self._facts, self._args, self._kwargs)
            if not draws:
                exact, parallel = self._references(self._compute)
        versions = [_version(tensor) for tensor in self._written] if self._facts.bumps_no_version else None
        try:
            result = self._facts.op(*self._args, **self._kwargs)
        except BaseException:  # the reference may have written what the device has not
            for tensor in self._written:
                self._carried.drop(tensor)
            raise
        if versions is not None:
            self._count_versions(versions)
        with without_modes():
            if draws:
                exact, parallel = self._references(lambda read: self._compute_drawn(read, result))
            self._compare(result, exact, parallel)
        if contract is not None and before is not None:
            self._ledger.violate(contract.after(before, result, self._place))
        return result

    def _count_versions(self, versions: list[int | None]) -> None:
        """PyTorch bumps no version counter of a list under a dispatch mode; a session does, unless it is beneath others."""
        pairs = zip(self._written, versions, strict=True)
        increment_versions([t for t, v in pairs if v is not None and _version(t) == v], None)

    # -- the reference

    def _references(
        self, compute: Callable[[Read], list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor] | None, list[torch.Tensor] | None]:
        """What the reference makes of the device's inputs, and of its own; the same where it has none."""
        try:
            exact = self._exact(compute)
        except Exception as error:  # noqa: BLE001 -- whatever the reference cannot do is said; the device goes its own way
            self._unjudged = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return None, None
        if not any(map(self._carried.has, self._ours)):
            return exact, exact
        try:
            return exact, compute(self._read_carried)
        except Exception:  # noqa: BLE001 -- it took the device's inputs but not its own: they have gone another way
            return exact, None

    def _exact(self, compute: Callable[[Read], list[torch.Tensor]]) -> list[torch.Tensor]:
        """What only moves or compares elements is asked in the device's dtype: a number among its arguments is rounded to that."""
        if class_of(self._facts.name).name == "exact":
            with suppress(RuntimeError):  # the host has no kernel for the dtype
                return compute(self._read_as_is)
        return compute(self._read)

    def _read_as_is(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._as_is.get(id(tensor))
        if found is None:
            found = seen_from_host(tensor)
            found = self._as_is[id(tensor)] = found.clone() if id(tensor) in self._overwritten else found
        return found

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._seen.get(id(tensor))
        if found is None:
            dtype = self._observer.reference.dtype_for(tensor.dtype)
            found = seen_from_host(tensor).to(dtype, copy=id(tensor) in self._overwritten)
            self._seen[id(tensor)] = found
        return found

    def _read_carried(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != DEVICE_TYPE:
            return self._read(tensor)
        if id(tensor) in self._overwritten:
            self._carried.begin(tensor)
        carried = self._carried.view(tensor)
        return self._read(tensor) if carried is None else carried

    def _compute(self, read: Read) -> list[torch.Tensor]:
        """Results in the order of ``_results_of``."""
        run = self._observer.reference.run
        if self._functional is None:
            result = tensors_of(run(self._facts.op, self._args, self._kwargs, read))
            return [*result, *(read(t) for t in self._written if not self._facts.written)]
        outs = self._facts.out_names
        kwargs = {name: value for name, value in self._kwargs.items() if name not in outs}
        if self._facts.out_says_dtype:
            kwargs["dtype"] = self._written[0].dtype
        return tensors_of(run(self._functional, self._args, kwargs, read))

    def _compute_drawn(self, read: Read, result: Any) -> list[torch.Tensor]:
        drawn = map_values(seen_from_host, result)
        return AFTER_A_DRAW[self._facts.name](*map_values(read, self._args), result=drawn)

    def _results_of(self, result: Any) -> list[torch.Tensor]:
        if self._functional is not None:
            return list(self._written)
        return [*tensors_of(result), *(self._written if not self._facts.written else ())]

    # -- what came of it

    def _compare(
        self, result: Any, exact: list[torch.Tensor] | None, parallel: list[torch.Tensor] | None
    ) -> None:
        made = self._made = self._results_of(result)
        if not made:
            self._compare_numbers(result)
        elif exact is not None and len(exact) != len(made):
            self._unjudged = f"the reference makes {len(exact)} results, the device {len(made)}"
            exact = parallel = None
        for place, ours in enumerate(made):
            if exact is None or not is_dense(ours) or is_scratch(self._facts.name, place):
                self._carried.drop(ours)
            else:
                self._compare_tensor(place, ours, exact[place], None if parallel is None else parallel[place])
        self._note()

    def _compare_tensor(
        self, place: int, ours: torch.Tensor, exact: torch.Tensor, parallel: torch.Tensor | None
    ) -> None:
        """Judge one result, and carry on what the reference has for it."""
        if parallel is not None and parallel.shape != ours.shape:
            self._note_branch(f"shape {list(ours.shape)}", f"shape {list(parallel.shape)}")
            parallel = None
        if is_factor(self._facts.name, place):
            parallel = None  # the reference's own may have other signs: it goes on with the device's
        value = seen_from_host(ours)
        other = None if parallel is exact else parallel
        extent = extent_of(value, exact, other) if exact.shape == value.shape else None
        found = self._judge(place, value, exact, extent)
        if parallel is None:
            self._carried.drop(ours)
            return
        if other is not None:
            found = (
                looked_at(value, other)
                if extent is None or extent.apart == math.inf
                else Reading(extent.apart, extent.apart, extent.scale)
            )
        self._carry_on(ours, (value, parallel), found)

    def _judge(self, place: int, value: torch.Tensor, exact: torch.Tensor, extent: Extent | None) -> Reading:
        if value.shape != exact.shape:
            wrong = Reading(math.inf, 0.0, 0.0)
            self._worst.add(wrong, Tolerance(0.0, 0.0, "flroute: shapes are exact"), None)
            return wrong
        found, allowed = self._verdict(place, value, exact, extent)
        pair = value, exact
        if found.excess > 1 and not value.is_floating_point() and self._is_same_choice(value, exact):
            found = Reading(0.0, 0.0, found.scale)
        elif found.excess > 1 and is_factor(self._facts.name, place):
            found, pair = self._by_product(allowed) or (found, pair)
        self._worst.add(found, allowed, pair)
        if not found.finite:
            self._note_nonfinite(value, exact)
        return found

    def _verdict(
        self, place: int, value: torch.Tensor, exact: torch.Tensor, extent: Extent | None
    ) -> Verdict:
        inputs = list(self._inputs().values())

        def moved() -> list[torch.Tensor]:
            if self._as_is or self._overwritten:
                return []  # what is exact is to be exact; or the reference has overwritten what it read

            def compute(values: list[torch.Tensor]) -> list[torch.Tensor]:
                read = dict(zip(self._seen, values, strict=True))
                return self._compute(lambda tensor: read[id(tensor)])

            return moved_results(compute, inputs, exact, place)

        vendor = device_at(self._ours[0].device.index).vendor
        return self._observer.judge.judge(self._facts, vendor, value, exact, inputs, moved, extent)

    def _inputs(self) -> dict[int, torch.Tensor]:
        """What the device was given, as the reference has read it."""
        return self._as_is or self._seen

    def _by_product(self, allowed: Tolerance) -> tuple[Reading, Pair] | None:
        dtype_for = self._observer.reference.dtype_for
        results = [seen_from_host(tensor).to(dtype_for(tensor.dtype)) for tensor in self._made]
        return judged_by_product(self._facts.name, map_values(self._read, self._args), results, allowed)

    def _is_same_choice(self, value: torch.Tensor, exact: torch.Tensor) -> bool:
        bound = bind(self._facts, map_values(self._read, self._args), self._kwargs)
        return same_choice(self._facts.name, bound, value, exact)

    def _carry_on(self, ours: torch.Tensor, pair: Pair, found: Reading) -> None:
        """What the reference makes of its own inputs is its value from here on."""
        self._worst.accumulate(found, pair)
        if found.max_abs == 0 and found.excess == 0 and not self._carried.has(ours):
            return  # the same: nothing needs to be kept
        self._carried.adopt(ours, self._given_up(pair[1]))

    def _given_up(self, values: torch.Tensor) -> torch.Tensor:
        """Values that nothing else is made of."""
        storage = values.untyped_storage()
        if self._read_storages is None:
            read = (*self._seen.values(), *self._as_is.values())
            self._read_storages = {storage_key(t.untyped_storage()) for t in read}
        shared = storage_key(storage) in self._read_storages
        return values.clone() if shared or storage.nbytes() != values.numel() * values.itemsize else values

    def _compare_numbers(self, result: Any) -> None:
        """A number that the program looks at: what would the reference have said?"""
        for tensor in self._ours:
            theirs = self._carried.view(tensor)
            if theirs is not None and tensor.numel() == 1:
                value = theirs.reshape(()).item()
                if isinstance(result, bool | int) and value != result:
                    self._note_branch(repr(result), repr(value))
                host = seen_from_host(tensor)
                pair = (host, theirs.reshape(host.shape))
                self._worst.accumulate(looked_at(*pair), pair)
        if self._facts.name == "aten::equal" and any(map(self._carried.has, self._ours)):
            value = torch.equal(*(self._read_carried(t) for t in tensors_in(self._args, self._kwargs)))
            if value != result:
                self._note_branch(repr(result), repr(value))

    # -- into the ledger

    def _note(self) -> None:
        row, worst = self._ledger.row(self._facts.name, self._place), self._worst
        row.unjudged = self._unjudged or row.unjudged
        if worst.tolerance is not None:
            if row.tolerance is None or worst.excess > row.excess:
                row.excess, row.tolerance = worst.excess, worst.tolerance
            row.local = _kept(row.local, worst.local, worst.pair)
        if worst.pair is not None and worst.parallel is not None and worst.pair[1] is worst.parallel[1]:
            if worst.accumulated > row.accumulated.max_abs or not row.accumulated.numel:
                row.accumulated = row.local  # the reference has no values of its own yet
        else:
            row.accumulated = _kept(row.accumulated, worst.accumulated, worst.parallel)
        call = Call(
            self._ledger.count,
            self._facts.name,
            self._place,
            worst.excess,
            worst.local,
            worst.accumulated,
            worst.scale,
        )
        self._ledger.note(call, row)
        if call.excess > 1 and self._facts.name not in self._ledger.scripts:
            self._save_for(self._facts.name)

    def _note_branch(self, device: str, reference: str) -> None:
        self._ledger.branches.append(Branch(self._facts.name, self._place, device, reference))

    def _note_nonfinite(self, value: torch.Tensor, exact: torch.Tensor) -> None:
        """Infinities of finite inputs, and NaNs of inputs without: a mask is made of infinities on purpose."""
        is_nan = _has_nan(value)
        found = NonFinite(
            self._facts.name, self._place, _has_nan(exact) if is_nan else not _is_finite(exact), is_nan
        )
        if self._ledger.knows_of(found):
            return
        inputs = self._inputs().values()
        if not any(map(_has_nan, inputs)) if is_nan else all(map(_is_finite, inputs)):
            self._ledger.nonfinite.append(replace(found, script=self._save_for(None)))

    def _save_for(self, op: str | None) -> str | None:
        """Write the call as a script, if such are kept; with the inputs as they were."""
        saver = self._observer.saver
        if saver is None:
            return None
        seen = self._inputs()
        tensors = tensors_in(self._args, self._kwargs)
        inputs = {id(t): seen[id(t)].to(t.dtype) for t in tensors if id(t) in seen}

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            return inputs.get(id(tensor), seen_from_host(tensor))

        kwargs = {name: map_values(kept, value) for name, value in self._kwargs.items()}
        script = saver.save(self._facts.name, map_values(kept, self._args), kwargs, self._ours[0].device)
        if op is not None:
            self._ledger.scripts[op] = script
        return script


class _Worst:
    """The worst among a call's results."""

    def __init__(self) -> None:
        self.excess = self.local = self.accumulated = self.scale = 0.0
        self.tolerance: Tolerance | None = None
        self.pair: Pair | None = None
        self.parallel: Pair | None = None

    def add(self, found: Reading, tolerance: Tolerance, pair: Pair | None) -> None:
        """Take up what a result is away from the exact one."""
        self.local = max(self.local, found.max_abs)
        if found.excess > self.excess or self.tolerance is None:
            self.excess, self.tolerance, self.pair = found.excess, tolerance, pair

    def accumulate(self, found: Reading, pair: Pair) -> None:
        """Take up what a result is away from the reference's own."""
        if found.max_abs > self.accumulated or self.parallel is None:
            self.parallel = pair
        self.accumulated = max(self.accumulated, found.max_abs)
        self.scale = max(self.scale, found.scale)


def _kept(known: Difference, max_abs: float, pair: Pair | None) -> Difference:
    """The largest difference is always kept; to measure all of it is worth the time where it is not nearly known."""
    if pair is None or (known.numel and max_abs <= known.max_abs):
        return known
    if known.numel and max_abs <= _MUCH_MORE * known.max_abs:
        return replace(known, max_abs=max_abs)
    return difference(*pair)


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all()) if tensor.is_floating_point() or tensor.is_complex() else True


def _has_nan(tensor: torch.Tensor) -> bool:
    return bool(torch.isnan(tensor).any())


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else version_of(tensor)
