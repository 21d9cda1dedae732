"""``flroute.compare``: one model on two devices, from the same parameters, inputs and seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from flroute.drift.compare.alignment import Alignment, Detour, align
from flroute.drift.compare.comparison import (
    Comparison,
    Divergence,
    LayerShare,
    OpDifference,
    TensorDifference,
)
from flroute.drift.compare.kept import Kept
from flroute.drift.compare.observe import Subject, observe
from flroute.drift.compare.run import Local, OpCall, Run, key
from flroute.drift.compare.sides import HOST, HOST_FLOAT64
from flroute.drift.measures import Difference, difference
from flroute.drift.tolerances import Tolerance
from flroute.errors import ComparisonError
from flroute.report import counted

_ROUNDINGS = 16.0
"""Units of eps, relative to the largest element, that any tensor may differ by."""
_TIMES_NOISE = 8.0
"""How many times the host's own rounding error a tensor may differ by."""
_ROUNDINGS_UNKNOWN = 64.0
"""Units of eps where the host's own rounding error is not known."""
_SHOWN_VARIANTS = 3


Tolerances = Mapping[str, tuple[float, float]]
"""For a pattern of names: relative to the element, and relative to the largest element."""


def compare(
    model: torch.nn.Module,
    inputs: Any,
    a: str = "fl",
    b: str = "cpu",
    *,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    backward: bool = True,
    seed: int = 0,
    tolerances: Tolerances | None = None,
    **settings: Any,
) -> Comparison:
    """Run a model on two devices and say where the numbers part, layer by layer and op by op.

    Args:
        model: on any device; copies of it run, and it stays as it is.
        inputs: the tensor, the tuple of arguments, or the dictionary of keyword arguments that the model is called with.
        a: vendor or device, as for ``enable``; ``"cpu"`` for the host, ``"host-float64"`` for the host in float64.
        b: what it is compared with, likewise.
        kwargs: more keyword arguments for the model.
        loss: makes of the model's output the number whose gradients are compared. Without it each output that has a gradient
            is given a fixed one, as if the loss were the sum of cos(i) times the i-th element of each.
        backward: whether to compare gradients, too.
        seed: of the random numbers that the model draws, on both devices.
        tolerances: others than flroute's: for patterns of ops (``"aten::mm"``), and of tensors (``"output"``, ``"gradient*"``,
            ``"buffer"``), how far they may be off relative to the element, and relative to the largest element.
        settings: of the sessions it runs in, as for ``enable``.

    Raises:
        UnknownVendorError, DeviceError: as for ``enable``.
        FlrouteError: the model cannot be copied.

    Example:
        >>> import flroute, torch
        >>> found = flroute.compare(torch.nn.Linear(8, 4), torch.ones(2, 8), a="reference")
        >>> found.passed, found.first_divergence
        (True, None)
    """
    subject = Subject(model, inputs, dict(kwargs or {}), loss, backward, seed, settings)
    run_b = observe(subject, b)
    run_a = observe(subject, a)
    if run_a.raised is not None and run_b.raised is not None:
        raise run_b.raised
    return compare_runs(run_a, with_noise(run_b, subject), tolerances=tolerances)


def with_noise(run: Run, subject: Subject) -> Run:
    """The run, with what the host's own rounding errors are: found by running the model there in its dtype and in float64."""
    if run.raised is not None:
        return run
    host = run if run.origin.place == HOST else observe(subject, HOST)
    exact = observe(subject, HOST_FLOAT64)
    remark = _unfit_as_judge(host, exact)
    if remark:
        run.remarks.append(remark)
        return run
    theirs = dict(exact.tensors())
    for name, value in host.tensors():
        judge = theirs.get(name)
        if judge is not None and judge.shape == value.shape and value.is_floating:
            found = difference(value.values, judge.values)
            run.noise[name] = math.inf if found.mismatched_nonfinite else found.max_abs
    return run


def _unfit_as_judge(host: Run, exact: Run) -> str:
    """Why float64 does not tell the host's rounding errors; empty if it does."""
    if exact.error:
        return f"the host's own rounding errors are not known: in float64 the model raises {exact.error}"
    loose = align(host, exact).loose
    if loose is not None:
        return f"the host's own rounding errors are not known: in float64 {loose[1]}"
    return ""


def compare_runs(a: Run, b: Run, *, tolerances: Tolerances | None = None) -> Comparison:
    """What two runs of one model have in common, and where they part.

    Args:
        a: a run.
        b: what it is compared with.
        tolerances: as for ``compare``.

    Raises:
        ComparisonError: they are not of the same model, parameters, inputs and seed.
    """
    refuse_unlike(a, b)
    ways = align(a, b)
    asked = tolerances or {}
    ops = tuple(_as_asked(op, asked) for op in _op_differences(a, b, ways))
    tensors = tuple(_tensor_differences(a, b, ways, asked))
    return Comparison(
        a.origin, b.origin, ops, tensors, _shares(a, ops), tuple(ways.detours), _failure(a, b), _remarks(a, b, ways, ops, tensors)
    )  # fmt: skip


def refuse_unlike(a: Run, b: Run) -> None:
    """Refuse runs that are not of the same model, parameters, inputs and seed.

    Raises:
        ComparisonError: says what differs.
    """
    for what in ("model", "modules", "parameters", "checkpoint", "inputs", "seed", "training", "backward"):
        of_a, of_b = getattr(a.origin, what), getattr(b.origin, what)
        if of_a != of_b:
            raise ComparisonError(
                f"the runs cannot be compared: they differ in {_what_differs(what, of_a, of_b)}. Record both from the same "
                f"function and seed; where two machines draw other numbers, load checkpoint and inputs from a file"
            )


def _what_differs(what: str, of_a: Any, of_b: Any) -> str:
    if not isinstance(of_a, dict):
        return f"{what}: {of_a} and {of_b}"
    for name in dict.fromkeys([*of_a, *of_b]):
        if of_a.get(name) != of_b.get(name):
            either = [of.get(name, "absent") for of in (of_a, of_b)]
            return f"{what}: {name or 'the model itself'} is {either[0]} in one and {either[1]} in the other"
    return what


def _op_differences(a: Run, b: Run, ways: Alignment) -> Iterator[OpDifference]:
    for at, call in enumerate(a.ops):
        partner = b.ops[ways.partners[at]] if at in ways.partners else None
        accumulated = _accumulated(call, partner) if partner is not None else None
        local, by = call.local, a.origin.place
        if (
            partner is not None
            and partner.local is not None
            and (local is None or partner.local.excess > local.excess)
        ):
            local, by = partner.local, b.origin.place
        yield OpDifference(call.op, call.module, call.phase, at, accumulated, local, by, call.unjudged)


def _accumulated(call: OpCall, partner: OpCall) -> Difference | None:
    """Of the result that differs most."""
    found = [
        difference(x.values, y.values)
        for x, y in zip(call.results, partner.results, strict=False)
        if x.shape == y.shape and x.values.shape == y.values.shape
    ]
    return max(found, key=lambda d: (d.mismatched_nonfinite, d.max_abs), default=None)


def _tensor_differences(a: Run, b: Run, ways: Alignment, asked: Tolerances) -> Iterator[TensorDifference]:
    theirs = dict(b.tensors())
    noise = {**a.noise, **b.noise}
    kinds = {layer.module: layer.kind for layer in a.layers}
    firm = _firm_outputs(a, ways)
    for name, value in a.tensors():
        other = theirs.get(name)
        if other is None:
            continue
        what, module, turn, _ = name.split("|")
        kind = kinds.get(module, "") if what in ("output", "gradient") else ""
        found = _difference_of(value, other)
        allowed = _asked_for(what, asked)
        if firm is not None and name not in firm:
            far = 0.0
        else:
            far = _times(found, allowed) if allowed else _excess(found, value, noise.get(name))
        yield TensorDifference(what, module, kind, int(turn), found, far, noise.get(name), value.is_whole)


def _firm_outputs(a: Run, ways: Alignment) -> set[str] | None:
    """Outputs of layers that came before the runs could no longer be compared number for number; ``None`` where all can."""
    if ways.loose is None:
        return None
    before = [layer for layer in a.layers if layer.ended <= ways.loose[0]]
    return {
        key("output", layer.module, layer.turn, at) for layer in before for at in range(len(layer.outputs))
    }


def _difference_of(value: Kept, other: Kept) -> Difference:
    if value.shape != other.shape or value.values.shape != other.values.shape:
        return Difference(mismatched_nonfinite=value.values.numel(), numel=value.values.numel())
    return difference(value.values, other.values)


def _asked_for(name: str, asked: Tolerances) -> Tolerance | None:
    pair = next((pair for pattern, pair in asked.items() if fnmatchcase(name, pattern)), None)
    return None if pair is None else Tolerance(*pair, source="argument")


def _as_asked(op: OpDifference, asked: Tolerances) -> OpDifference:
    """With the tolerance that the user gave for this op, if any."""
    allowed = _asked_for(op.op, asked)
    if allowed is None or op.local is None:
        return op
    found = op.local.difference
    in_words = f"rtol {allowed.rtol:.1e}, atol {allowed.atol:.1e}"
    return replace(op, local=Local(found, _times(found, allowed), in_words, allowed.source))


def _times(found: Difference, allowed: Tolerance) -> float:
    if found.mismatched_nonfinite:
        return math.inf
    most = (allowed.rtol + allowed.atol) * found.scale
    return found.max_abs / most if most else (math.inf if found.max_abs else 0.0)


def _excess(found: Difference, value: Kept, noise: float | None) -> float:
    """How many times what rounding may have built up; integers are to be the same."""
    if found.mismatched_nonfinite:
        return math.inf
    if found.max_abs == 0:
        return 0.0
    if not value.is_floating:
        return math.inf
    info = torch.finfo(value.values.dtype)
    roundings = _ROUNDINGS if noise is not None else _ROUNDINGS_UNKNOWN
    allowed = roundings * info.eps * found.scale + _TIMES_NOISE * (noise or 0.0) + info.smallest_normal
    return found.max_abs / allowed


def _shares(a: Run, ops: tuple[OpDifference, ...]) -> tuple[LayerShare, ...]:
    by_module: dict[str, list[OpDifference]] = {}
    for op in ops:
        by_module.setdefault(op.module, []).append(op)
    shares = []
    for module, of_module in by_module.items():
        worst = max(of_module, key=lambda op: op.excess)
        added = math.sqrt(sum(op.excess**2 for op in of_module))
        shares.append(LayerShare(module, a.origin.modules.get(module, ""), added, worst.op, worst.excess))
    return tuple(sorted(shares, key=lambda share: -share.added))


def _failure(a: Run, b: Run) -> Divergence | None:
    if bool(a.error) == bool(b.error):
        return None
    failed, other = (a, b) if a.error else (b, a)
    last = failed.ops[-1] if failed.ops else None
    module, phase = failed.raised_in
    after = f", after {last.op}" if last is not None else ""
    why = f"{failed.origin.place} raised {failed.error}{after}, where {other.origin.place} went on"
    return Divergence(module or "the model itself", "", module, phase, why)


def _remarks(
    a: Run, b: Run, ways: Alignment, ops: tuple[OpDifference, ...], tensors: tuple[TensorDifference, ...]
) -> tuple[str, ...]:
    remarks = [*dict.fromkeys([*a.remarks, *b.remarks])]
    if ways.loose is not None:
        remarks.append(
            f"the runs cannot be aligned: {ways.loose[1]}. What comes after it is judged op by op, layers are not"
        )
    remarks += _variants_in_words(ways.variants, a.origin.place, b.origin.place)
    unjudged = {op.op: op.unjudged for op in ops if op.local is None and op.unjudged}
    remarks += [f"{op} is not judged by itself: {why}" for op, why in unjudged.items()]
    sampled = sum(not tensor.whole for tensor in tensors)
    if sampled:
        remarks.append(f"of {sampled} large tensors only some elements are compared")
    return tuple(remarks)


def _variants_in_words(variants: list[Detour], a: str, b: str) -> list[str]:
    """Each way of computing the same by other ops once, with how often it was met."""
    first = {(v.ran, v.instead): v for v in reversed(variants)}
    times = Counter((v.ran, v.instead) for v in variants)
    told = [
        first[ways].in_words(a, b) + (f" and {counted(more, 'other place')}" if (more := number - 1) else "")
        for ways, number in times.most_common(_SHOWN_VARIANTS)
    ]
    rest = len(times) - len(told)
    return told + ([f"{rest} more ways in which the same is computed by other ops"] if rest else [])
