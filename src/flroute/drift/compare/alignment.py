"""Which call of one run corresponds to which of another, and where the two took different ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from flroute.drift.compare.run import OpCall, Run, place_in_words
from flroute.drift.compare.watcher import is_quiet
from flroute.drift.measures import difference
from flroute.vocabulary import Phase

Group = tuple[Phase, str, int]


@dataclass(frozen=True)
class Detour:
    """A place where one run called what the other did not.

    Attributes:
        module: where.
        phase: forward or backward.
        ran: what was called in the first run.
        instead: what was called there in the second.
        because: the value that the program had read before, and which differs; empty if none did: then it is the
            implementation that differs, and not the control flow.
    """

    module: str
    phase: Phase
    ran: tuple[str, ...]
    instead: tuple[str, ...]
    because: str = ""

    def in_words(self, a: str, b: str) -> str:
        """``fl ran aten::relu where cpu ran aten::neg, in head``."""
        ran, instead = _listed(self.ran), _listed(self.instead)
        text = f"{a} ran {ran} where {b} ran {instead}, in {place_in_words(self.module, self.phase)}"
        return f"{text}: {self.because}" if self.because else text


def _listed(calls: Sequence[str]) -> str:
    shown = [f"{op} ({times} times)" if times > 1 else op for op, times in Counter(calls).items()]
    more = [f"{len(shown) - 4} other ops"] if len(shown) > 5 else []
    return ", ".join(shown[: 4 if more else 5] + more) or "nothing"


@dataclass(frozen=True)
class Unit:
    """One call as the program made it: of an op, or of the parts that one was split into.

    Attributes:
        op: that was called.
        at: the calls it came to.
    """

    op: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Alignment:
    """How two runs correspond.

    Attributes:
        partners: for each call of the first run the one of the second, if there is any.
        detours: where control flow took another way, since data differed.
        variants: where the same was computed by other ops.
        loose: from which call of the first run on its tensors cannot be compared with the second's, and why: random numbers
            that are others, or equal elements in another order.
    """

    partners: dict[int, int]
    detours: list[Detour]
    variants: list[Detour]
    loose: tuple[int, str] | None


def align(a: Run, b: Run) -> Alignment:
    """Match calls by module, turn, op and order."""
    groups_a, groups_b = _groups(a.ops), _groups(b.ops)
    partners: dict[int, int] = {}
    apart: list[tuple[int, Detour]] = []
    strays = _strayed_modules(a, b)
    for group in dict.fromkeys([*groups_a, *groups_b]):
        mine, theirs = groups_a.get(group, []), groups_b.get(group, [])
        names_a, names_b = [unit.op for unit in mine], [unit.op for unit in theirs]
        phase, module, turn = group
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, names_a, names_b, autojunk=False).get_opcodes():
            if kind == "equal":
                for x, y in zip(mine[i1:i2], theirs[j1:j2], strict=True):
                    partners.update(_partners_within(a, b, x, y))
            elif (module, turn) not in strays and not (a.error or b.error):
                at = mine[i1].at[0] if i1 < len(mine) else len(a.ops)
                apart.append((at, Detour(module, phase, tuple(names_a[i1:i2]), tuple(names_b[j1:j2]))))
    return _sorted_out(a, b, partners, sorted(apart, key=lambda item: item[0]), list(strays.values()))


def _partners_within(a: Run, b: Run, x: Unit, y: Unit) -> Iterator[tuple[int, int]]:
    """Which calls correspond in two units of one op: their parts where these are the same, else only the last, for the result."""
    if [a.ops[i].op for i in x.at] == [b.ops[j].op for j in y.at]:
        yield from zip(x.at, y.at, strict=True)
    else:
        yield x.at[-1], y.at[-1]


def _groups(ops: Sequence[OpCall]) -> dict[Group, list[Unit]]:
    found: dict[Group, dict[tuple[str, int], list[int]]] = {}
    for at, op in enumerate(ops):
        whole = op.part_of if op.part_of[0] else (op.op, -1 - at)  # numbers of split calls begin at 0
        if not is_quiet(whole[0]):
            found.setdefault((op.phase, op.module, op.turn), {}).setdefault(whole, []).append(at)
    return {
        group: [Unit(name, tuple(at)) for (name, _), at in units.items()] for group, units in found.items()
    }


def _strayed_modules(a: Run, b: Run) -> dict[tuple[str, int], Detour]:
    """Calls of modules that only one run made; implementations cannot differ in these."""
    if a.error or b.error:
        return {}
    in_a, in_b = ({(layer.module, layer.turn): layer for layer in run.layers} for run in (a, b))
    found = {}
    for at in dict.fromkeys([*in_a, *in_b]):
        if (at in in_a) != (at in in_b):
            layer = in_a.get(at) or in_b[at]
            called = (f"module {layer.module} ({layer.kind})",)
            ran, instead = (called, ()) if at in in_a else ((), called)
            found[at] = Detour(layer.module, Phase.FORWARD, ran, instead)
    return found


def _sorted_out(
    a: Run, b: Run, partners: dict[int, int], apart: list[tuple[int, Detour]], strays: list[Detour]
) -> Alignment:
    """Tell another control flow from another implementation: only the former has read a value that differs."""
    misread = [
        (i, _misread(a.ops[i], b.ops[j]))
        for i, j in sorted(partners.items())
        if _read_otherwise(a.ops[i], b.ops[j])
    ]
    because = misread[0][1] if misread else ""
    detours = [Detour(d.module, d.phase, d.ran, d.instead, because) for d in strays]
    variants = []
    for at, d in apart:
        before = [why for i, why in misread if i <= at]
        if before:
            detours.append(Detour(d.module, d.phase, d.ran, d.instead, before[-1]))
        else:
            variants.append(d)
    return Alignment(partners, detours, variants, _loose(a, b, partners))


def _loose(a: Run, b: Run, partners: dict[int, int]) -> tuple[int, str] | None:
    """The first call after which numbers cannot be compared one by one, and why."""
    theirs = {j: i for i, j in partners.items()}
    found = [(i, _said(call, call.loose)) for i, call in enumerate(a.ops) if call.loose]
    found += [(theirs.get(j, 0), _said(call, call.loose)) for j, call in enumerate(b.ops) if call.loose]
    found += [
        (i, _said(a.ops[i], f"draws other random numbers on {a.origin.place} than on {b.origin.place}"))
        for i, j in partners.items()
        if a.ops[i].seeded and not _alike(a.ops[i], b.ops[j])
    ]
    told = [(i, why) for i, why in found if not _agree(a, b, partners, i)]
    return min(told, default=None)


def _alike(a: OpCall, b: OpCall) -> bool:
    """Whether results differ by no more than what rounding makes of the same draws."""
    pairs = [(x.values, y.values) for x, y in zip(a.results, b.results, strict=False) if x.shape == y.shape]
    found = [difference(x, y) for x, y in pairs if x.shape == y.shape]
    return len(found) == len(a.results) and all(d.max_abs <= _ROUNDED * d.scale for d in found)


_ROUNDED = 0.05


def _agree(a: Run, b: Run, partners: dict[int, int], at: int) -> bool:
    return at in partners and _same_results(a.ops[at], b.ops[partners[at]])


def _said(call: OpCall, why: str) -> str:
    return f"{call.op} in {call.place} {why}"


def _read_otherwise(a: OpCall, b: OpCall) -> bool:
    if a.reads == "shape":
        return [x.shape for x in a.results] != [y.shape for y in b.results]
    return bool(a.reads) and not _same_results(a, b)


def _same_results(a: OpCall, b: OpCall) -> bool:
    return len(a.results) == len(b.results) and all(map(lambda x, y: x.equals(y), a.results, b.results))


def _misread(a: OpCall, b: OpCall) -> str:
    values = [_shown(call) for call in (a, b)]
    return f"{a.op} in {a.place} gave {values[0]}, not {values[1]}"


def _shown(call: OpCall) -> str:
    first = call.results[0] if call.results else None
    if first is None:
        return "nothing"
    return f"{first.values[0].item():.9g}" if first.shape == () else f"a tensor of {list(first.shape)}"
