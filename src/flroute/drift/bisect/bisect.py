"""Which ops spoil a metric: the smallest set whose kernels, replaced by the host's, bring it back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flroute.drift.bisect.bisection import Bisection
from flroute.drift.bisect.progress import Progress
from flroute.drift.bisect.smallest import fewest_questions, most_questions, smallest
from flroute.drift.bisect.state import KeptRuns
from flroute.drift.bisect.trials import EVERYTHING, CallableTrial, CommandTrial, Run, Trial
from flroute.errors import BisectError
from flroute.routing.schema import facts_of
from flroute.torch_compat import find_op

Group = tuple[str, ...]
"""Ops that share a kernel, or are forms of one: a fault in one is a fault in all."""

_BEGIN = 3
"""Runs before the search: on the device, again, and on the host."""

_END = 1
"""Runs after it: with all but what was found on the host. One more where parts of what is split may be left out."""


def bisect(
    metric: Callable[[], Any] | Sequence[str],
    tolerance: float,
    *,
    relative: bool = False,
    good: float | None = None,
    pattern: str | None = None,
    device: str | torch.device | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Bisection:
    """Find the smallest set of ops whose kernels spoil a number: with the host in their place it is good again.

    Args:
        metric: a function that computes the number in a session that is open, or a command, as a list, that prints it and opens
            sessions of its own. Both are run many times: at most ``2 log2(ops) + 6`` times where one op is at fault. Each call
            of a function begins with the same random numbers.
        tolerance: how far from the good value counts as good.
        relative: whether that is a share of the good value.
        good: the good value; without one it is what the host computes.
        pattern: for a command: a regular expression whose first group, in its last match on stdout, is the number. Without
            one, the last line ``metric: x`` counts, else the last number.
        device: as for ``enable``; a command's own word goes first.
        state: a file that keeps each run: an interrupted search, called again, goes on from there. It is removed at the end.
        progress: whether to say on stderr how many runs there are to be, and to show a bar in a terminal.
        settings: of the sessions of a function, as for ``enable``.

    Returns:
        The ops, and what proves it.

    Raises:
        BisectError: the metric raises, gives no number or another one each time, or is bad on the host, too; or the state file
            is of something else.

    Example:
        >>> import flroute, torch
        >>> found = flroute.bisect(lambda: torch.ones(3).exp().sum(), 1e-5, progress=False)
        >>> found.ops, found.runs
        ((), 3)
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise BisectError(f"a tolerance is a finite number, 0 or more, not {tolerance!r}")
    trial = _trial(metric, pattern, device, settings)
    kept = KeptRuns(None if state is None else Path(state), trial.name)
    with Progress(trial.name, kept.kept, shown=progress) as bar:
        found = _Search(trial, kept, bar, tolerance, relative=relative, good=good).run()
    kept.forget()
    return found


def _trial(
    metric: Callable[[], Any] | Sequence[str],
    pattern: str | None,
    device: str | torch.device | None,
    settings: Mapping[str, Any],
) -> Trial:
    if callable(metric):
        if pattern is not None:
            raise BisectError("a pattern finds the metric in what a command prints; a function returns it")
        return CallableTrial(metric, device, settings)
    if isinstance(metric, str) or not metric or not all(isinstance(word, str) for word in metric):
        raise BisectError(f"bisect takes a function or a command as a list of words, not {metric!r}")
    if settings:
        raise BisectError(
            f"a command opens its own sessions: {', '.join(settings)} cannot be given; set FLROUTE_* variables instead"
        )
    return CommandTrial(metric, pattern, None if device is None else str(device))


class _Search:
    """One bisection: the runs it asks for, each made once."""

    def __init__(
        self,
        trial: Trial,
        kept: KeptRuns,
        bar: Progress,
        tolerance: float,
        *,
        relative: bool,
        good: float | None,
    ) -> None:
        self.trial, self.kept, self.bar = trial, kept, bar
        self.tolerance, self.relative, self.given = tolerance, relative, good

    def run(self) -> Bisection:
        """The whole of it."""
        device = self._ask("device", ())
        self.suspects = tuple(device.native)
        if not self.suspects:
            raise BisectError(
                f"nothing that {self.trial.name} does is computed by a vendor's kernel: there is nothing to replace. "
                f"Does it put its tensors on the device?"
            )
        self._check_determinism(device, self._ask("device again", ()))
        host = self._ask("host", (*self.suspects, EVERYTHING))
        self.good = host.metric if self.given is None else self.given
        self.allowed = self._allowed(self.good)
        self._check(device, host)
        self.parts = tuple(op for op in host.sent if op not in device.native and op not in device.sent)
        if self._is_good(device.metric):
            return self._found((), (), device, host, device)
        groups = grouped(device.native)
        self._announce(groups)
        ops = self._without_bystanders(smallest(groups, lambda some: self._serves(_ops_of(some))))
        cured = self._by_itself(ops)
        return self._found(ops, self._accomplices(ops, groups), device, host, cured)

    def _allowed(self, good: float) -> float:
        """How far from the good value counts as good."""
        return self.tolerance * abs(good) if self.relative else self.tolerance

    def _check_determinism(self, device: Run, again: Run) -> None:
        """Whether two runs of the same give the same; with half of the tolerance, so that no run falls now here and now there."""
        near = self._allowed(device.metric if self.given is None else self.given)
        if _distance(device.metric, again.metric) > (near / 2 if math.isfinite(near) else 0):
            raise BisectError(
                f"the metric is not deterministic: two runs on the device gave {device.metric:.9g} and {again.metric:.9g}, which "
                f"is too far apart for a tolerance of {near:.3g}. Seed what is random in it, and begin each run anew."
            )

    def _check(self, device: Run, host: Run) -> None:
        """Whether there is anything that can be looked for."""
        if stayed := [op for op in device.native if op in host.native]:
            raise BisectError(
                f"{', '.join(stayed[:3])}{' and others' if len(stayed) > 3 else ''} stayed on the device when sent to the host: "
                f"{self.trial.name} has rules of its own for them, or a function opens a session of its own, which bisect does "
                f"not reach. Take these out: bisect opens the session."
            )
        if not math.isfinite(self.good):
            raise BisectError(
                f"the metric is {self.good} with everything on the host: it is no measure of the device"
            )
        if not self._is_good(host.metric):
            raise BisectError(
                f"the metric is {host.metric:.9g} with everything on the host, and {self.good:.9g} is good, within "
                f"{self.allowed:.3g}: no kernel is at fault, or not alone. On the device it is {device.metric:.9g}."
            )

    def _announce(self, groups: Sequence[Group]) -> None:
        apart, alike, last = len(groups), max(map(len, groups)), _END + bool(self.parts)
        best = _BEGIN + fewest_questions(apart) + (_END if apart > 1 else 0)
        worst, two = (
            _BEGIN + most_questions(apart, n) + (most_questions(alike, n) if alike > 1 else 0) + last
            for n in (1, 2)
        )
        self.bar.plan(len(self.suspects), best, worst, two)

    def _without_bystanders(self, groups: list[Group]) -> tuple[str, ...]:
        """The ops of these groups that are needed."""
        ops = _ops_of(groups)
        return ops if len(ops) == len(groups) else tuple(smallest(ops, self._serves))

    def _accomplices(self, ops: tuple[str, ...], groups: Sequence[Group]) -> tuple[str, ...]:
        """The others without which the kernels of ``ops`` spoil nothing; none, where these do it alone."""

        def spoils(company: Iterable[Group]) -> bool:
            on_device = {*ops, *_ops_of(company)}
            return not self._serves([op for op in self.suspects if op not in on_device])

        others = [rest for group in groups if (rest := tuple(op for op in group if op not in ops))]
        return () if not others or spoils(()) else _ops_of(smallest(others, spoils))

    def _serves(self, ops: Iterable[str]) -> bool:
        """Whether the metric is good with these ops on the host."""
        return self._is_good(self._with_on_host(ops).metric)

    def _with_on_host(self, ops: Iterable[str]) -> Run:
        """Parts that come up when an op is split are no suspects: they go to the host with it."""
        sent = set(ops)
        if not sent:
            return self._ask("device", ())
        if len(sent) == len(self.suspects):
            return self._ask("host", (*self.suspects, EVERYTHING))
        in_order = [op for op in self.suspects if op in sent]
        return self._ask(" ".join(in_order), (*in_order, *self.parts))

    def _by_itself(self, ops: tuple[str, ...]) -> Run:
        """The run with these ops on the host and no parts of theirs, if it is good; else the one with them."""
        together = self._with_on_host(ops)
        if not any(op in self.parts for op in together.sent):
            return together
        alone = self._ask(f"only {' '.join(ops)}", ops)
        return alone if self._is_good(alone.metric) else together

    def _ask(self, asked: str, ops: Iterable[str]) -> Run:
        run = self.kept.get(asked)
        if run is None:
            self.bar.begins(asked)
            run = self.trial.run(ops)
            self.kept.put(asked, run)
            self.bar.advance(len(self.kept))
        return run

    def _is_good(self, metric: float) -> bool:
        return _distance(metric, self.good) <= self.allowed

    def _found(
        self, ops: tuple[str, ...], together_with: tuple[str, ...], device: Run, host: Run, cured: Run
    ) -> Bisection:
        return Bisection(
            ops=ops,
            kernels=tuple(dict.fromkeys(kernel for op in ops for kernel in device.native[op])),
            together_with=together_with,
            parts=tuple(op for op in cured.sent if op in self.parts),
            suspects=len(self.suspects),
            runs=len(self.kept),
            kept=self.kept.kept,
            good=self.good,
            on_device=device.metric,
            on_host=host.metric,
            cured=cured.metric,
            allowed=self.allowed,
        )


def _distance(one: float, other: float) -> float:
    """How far apart; what is not finite is far from all but itself."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf


def _ops_of(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(op for group in groups for op in group)


def grouped(native: Mapping[str, Sequence[str]]) -> list[Group]:
    """Ops with those that share a kernel with them, or are forms of the same: a rule about ``add`` is one about ``add_``, too.

    Args:
        native: for each op its kernels.

    Example:
        >>> grouped({"aten::add_.Tensor": ["a:add"], "aten::mm": ["a:mm"], "aten::add.Tensor": ["a:fast_add"]})
        [('aten::mm',), ('aten::add.Tensor', 'aten::add_.Tensor')]
    """
    home: dict[str, list[str]] = {}
    groups: list[list[str]] = []
    for op, kernels in native.items():
        names = [_functional(op), *(f"kernel {kernel}" for kernel in kernels)]
        ours: list[str] = [op]
        for group in {id(home[name]): home[name] for name in names if name in home}.values():
            ours = [*group, *ours]
            groups.remove(group)
            home.update({name: ours for name, at in home.items() if at is group})
        groups.append(ours)
        home.update(dict.fromkeys(names, ours))
    return [tuple(sorted(group, key=lambda op: _functional(op) != op)) for group in groups]


def _functional(op: str) -> str:
    found = find_op(op)
    functional = None if found is None else facts_of(found).functional
    return op if functional is None else str(functional.name())
