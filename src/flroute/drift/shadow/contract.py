"""What an op owes its caller beside values: aliasing, layout, dtype, what it writes, and the same answer twice.

Each signature of an op is checked once: these rules do not depend on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch

from flroute.device.table import DEVICE_TYPE
from flroute.drift.host_values import bytes_of, is_dense, map_values, seen_from_host, tensors_of, wide
from flroute.drift.reference import without_modes
from flroute.drift.shadow.ledger import Place, Violation
from flroute.routing.expected import expected_results
from flroute.routing.schema import OpFacts, bind, tensors_in, written_tensors
from flroute.torch_compat import has_kernel, storage_key, version_of

Facts = tuple[OpFacts, tuple[Any, ...], dict[str, Any]]


class Before(NamedTuple):
    """What is known of a call before it is made.

    Attributes:
        call: op and arguments.
        untouched: inputs that are not to be written, and what they hold.
        versions: of tensors whose version PyTorch counts up.
    """

    call: Facts
    untouched: list[tuple[torch.Tensor, torch.Tensor]]
    versions: list[tuple[torch.Tensor, int]]


class _Due(NamedTuple):
    """A version counter that is to have moved once the call has returned to its caller, if anybody has the tensor then."""

    tensor: ref[torch.Tensor]
    version: int
    op: str
    place: Place


class Contract:
    """Checks the first call of each signature.

    Args:
        repeats: how often an op that draws and writes nothing is run again, to see whether its answer is the same.
    """

    def __init__(self, repeats: int = 1) -> None:
        self._repeats = repeats
        self._known: set[Any] = set()
        self._due: list[_Due] = []
        self._returning: list[_Due] = []

    def before(self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Before | None:
        """What has to be looked at before the call; ``None`` if its signature is known."""
        key = (facts.name, *_signature(args), *_signature(tuple(kwargs.values())))
        if key in self._known:
            return None
        self._known.add(key)
        written = written_tensors(facts, args, kwargs)
        storages = {storage_key(t.untyped_storage()) for t in written}
        untouched = [
            (tensor, seen_from_host(tensor).clone())
            for tensor in tensors_in(args, kwargs)
            if tensor.device.type == DEVICE_TYPE and storage_key(tensor.untyped_storage()) not in storages
        ]
        versions = [(t, version_of(t)) for t in _counted(facts, args, kwargs) if not t.is_inference()]
        return Before((facts, args, kwargs), untouched, versions)

    def after(self, before: Before, result: Any, place: Place) -> list[Violation]:
        """The rules that the call broke."""
        facts, args, kwargs = before.call
        found = [*self._aliasing(facts, args, kwargs, result), *self._layout(facts, args, kwargs, result)]
        wrote = self._effects(before)
        found += wrote
        if not (wrote or facts.is_seeded or written_tensors(facts, args, kwargs)):
            found += self._repeated(facts, args, kwargs, result)
        self._due += [_Due(ref(t), version, facts.name, place) for t, version in before.versions]
        return [Violation(rule, facts.name, place, detail) for rule, detail in found]

    def overdue(self) -> list[Violation]:
        """Version counters that have not moved although their tensors were written; asked before each call and twice at the end.

        A counter is given one more call: PyTorch writes a lazy conjugate by writing a copy, which it copies back and lets go of.
        """
        if not (self._due or self._returning):
            return []
        due, self._returning, self._due = self._returning, self._due, []
        return [
            Violation("version", d.op, d.place, f"wrote a tensor whose version is still {d.version}")
            for d in due
            if (tensor := d.tensor()) is not None and version_of(tensor) == d.version
        ]

    def _aliasing(
        self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[tuple[str, str]]:
        made = tensors_of(result)
        given = {storage_key(t.untyped_storage()): t for t in tensors_in(args, kwargs) if t.numel()}
        if facts.writes_self:
            same = len(made) == 1 and made[0] is args[0]
            return (
                []
                if same
                else [("aliasing", "an in-place op returns the tensor it was given, not another one")]
            )
        if facts.written or _may_alias(facts):
            return []
        return [
            (
                "aliasing",
                f"result {place} shares memory with an argument of shape {list(given[key].shape)}; it is to be new",
            )
            for place, tensor in enumerate(made)
            if is_dense(tensor) and tensor.numel() and (key := storage_key(tensor.untyped_storage())) in given
        ]

    def _layout(
        self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[tuple[str, str]]:
        if facts.written:
            return []
        try:
            found = _against(result, expected_results(facts.op, args, kwargs))
            if (
                found and not facts.is_seeded
            ):  # rules for tensors without data are at times those of another device
                found = _against(result, _on_host(facts, args, kwargs))
        except Exception:  # noqa: BLE001 -- PyTorch refuses what the device has served: there is nothing to hold it to
            return []
        return found

    def _effects(self, before: Before) -> list[tuple[str, str]]:
        with without_modes():  # a session would route, and count, what is compared here
            written = [t for t, held in before.untouched if not _same_bits(seen_from_host(t), held)]
        return [
            ("in-place", f"wrote an argument of shape {list(t.shape)} that its schema does not let it write")
            for t in written
        ]

    def _repeated(
        self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> list[tuple[str, str]]:
        for _ in range(self._repeats):
            again = tensors_of(facts.op(*args, **kwargs))
            with without_modes():
                pairs = zip(tensors_of(result), again, strict=False)
                same = [
                    not is_dense(one) or _same_bits(seen_from_host(one), seen_from_host(other))
                    for one, other in pairs
                ]
            if not all(same):
                detail = f"result {same.index(False)} is another one when the call is made again"
                return [("determinism", detail)]
        return []


def _against(result: Any, expected: Sequence[Any] | None) -> list[tuple[str, str]]:
    found = []
    made = list(result) if isinstance(result, tuple | list) else [result]
    for place, (tensor, wanted) in enumerate(zip(made, expected or (), strict=False)):
        if not isinstance(tensor, torch.Tensor) or wanted is None or not is_dense(tensor):
            continue
        for rule in ("dtype", "shape", "strides"):
            ours, theirs = _fact(rule, tensor), _fact(rule, wanted)
            if ours != theirs and (rule != "strides" or tensor.numel() > 1):
                found.append((rule, f"result {place} has {rule} {ours}, PyTorch's rules say {theirs}"))
                break
    return found


def _on_host(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    with without_modes():
        here = map_values(seen_from_host, args)
        named = {
            name: torch.device("cpu")
            if isinstance(value, torch.device)
            else map_values(seen_from_host, value)
            for name, value in kwargs.items()
        }
        result = facts.op(*here, **named)
    return list(result) if isinstance(result, tuple | list) else [result]


_ALIASES = frozenset(
    f"aten::{name}"
    for name in (
        *("lift", "lift_fresh", "contiguous", "to", "reshape", "_to_copy"),
        *("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
    )
)


def _may_alias(facts: OpFacts) -> bool:
    """Ops whose result is, or may be, one of their arguments; implicit composites that arrive whole are made of such."""
    stated = any(r.alias_info is not None for r in facts.schema.returns)
    implicit = has_kernel(facts.name, "CompositeImplicitAutograd")
    return stated or implicit or facts.schema.name in _ALIASES


def _fact(rule: str, tensor: torch.Tensor) -> Any:
    if rule == "strides":
        return tuple(step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return tensor.dtype if rule == "dtype" else tuple(tensor.shape)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are the same, of whatever dtype; a NaN is one whatever its bits, and zero whatever its sign."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(bytes_of(one), bytes_of(other)):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    one, other = one.to(wide(one.dtype)), other.to(wide(other.dtype))
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _counted(facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """What an op writes and returns, and lists: PyTorch counts no version of what is written besides, as of a scaler's tracker."""
    returned = [info.before_set for r in facts.schema.returns if (info := r.alias_info) is not None]
    bound = bind(facts, args, kwargs)
    names = [
        a.name for a in facts.written if a.type.kind() == "ListType" or a.alias_info.before_set in returned
    ]
    return tensors_in(tuple(bound[name] for name in names if name in bound), {})


def _signature(values: tuple[Any, ...]) -> tuple[Any, ...]:
    made: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            made.append((value.dtype, value.shape, value.stride()))
        elif isinstance(value, list | tuple):
            made.append(_signature(tuple(value)))
        else:
            made.append(str(value))
    return tuple(made)
