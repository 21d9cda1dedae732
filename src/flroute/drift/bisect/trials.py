"""One run of what is bisected, with some ops sent to the host: a callable in this process, or a command in one of its own."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from flroute.device import rng
from flroute.errors import BisectError
from flroute.policy import HOST
from flroute.routing.trace import read
from flroute.session import enable
from flroute.settings import load_settings
from flroute.vocabulary import Decision, Reason, Route

EVERYTHING = "aten::*"

METRIC = re.compile(r"^\s*metric\s*[:=]\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf)(?![\w.]*\w)", re.IGNORECASE
)

_TOLD = 2000
"""Characters of a command's stderr that an error shows: its end, where a traceback says what it was."""


@dataclass(frozen=True)
class Run:
    """What one run gave.

    Attributes:
        metric: that number.
        native: for each op that a vendor's kernels computed, which kernels.
        sent: ops whose kernels a rule kept from being chosen.
    """

    metric: float
    native: Mapping[str, tuple[str, ...]]
    sent: tuple[str, ...]


class Trial(Protocol):
    """What can be run again and again."""

    @property
    def name(self) -> str:
        """What is run, in words: a search goes on only with the same."""

    def run(self, ops: Iterable[str]) -> Run:
        """Run it with these ops on the host.

        Raises:
            BisectError: it failed, or gave no number.
        """


def rules_for(ops: Iterable[str]) -> list[dict[str, Any]]:
    """Rules that send exactly these ops to the host, globs included."""
    return [{"op": exactly(op), "order": [HOST]} for op in ops]


def exactly(op: str) -> str:
    """How a rule means one overload and no other.

    Example:
        >>> exactly("aten::mean"), exactly("aten::mean.dim"), exactly("aten::*")
        ('aten::mean.default', 'aten::mean.dim', 'aten::*')
    """
    return op if "." in op or "*" in op else f"{op}.default"


def what_ran(decisions: Iterable[Decision]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The ops that vendors' kernels computed, with these, and those that a rule kept from kernels."""
    native: dict[str, dict[str, None]] = {}
    sent: dict[str, None] = {}
    for decision in decisions:
        if decision.route in (Route.NATIVE, Route.COPY):
            if decision.kernel is not None and not decision.kernel.startswith("fl/"):
                native.setdefault(decision.op, {})[decision.kernel] = None
        elif any(rejection.reason is Reason.POLICY for rejection in decision.rejected):
            sent[decision.op] = None
    return {op: tuple(kernels) for op, kernels in native.items()}, tuple(sent)


class CallableTrial:
    """A function that gives a number, in a session of its own each time; random numbers begin the same way in each.

    Args:
        metric: the function.
        device: as for ``enable``.
        settings: likewise.

    Raises:
        BisectError: ``fallback`` is among the settings.
    """

    def __init__(
        self, metric: Callable[[], Any], device: str | torch.device | None, settings: Mapping[str, Any]
    ) -> None:
        self.metric, self._device = metric, None if device is None else str(device)
        self.name = _name_of(metric)
        if "fallback" in settings:
            raise BisectError(
                f"bisect sends ops to the host, so it takes no fallback={settings['fallback']!r}: leave the setting out."
            )
        self._settings = dict(settings)
        self._own_rules = list(self._settings.pop("rules", None) or ())
        self._states = _random_states()

    def run(self, ops: Iterable[str]) -> Run:
        """Call it once."""
        sent = list(ops)
        _restore(self._states)
        rules = [*rules_for(sent), *self._own_rules]
        with enable(self._device, fallback="allow", rules=rules, **self._settings) as session:
            try:
                found = self.metric()
            except Exception as error:  # whatever it is: the search cannot go on, and the cause goes along
                raised = f"raised {type(error).__name__}, with {_place(sent)}: {error}"
                raise BisectError(f"the metric {self.name} {raised}") from error
            metric = self._number(found)
        return Run(metric, *what_ran(session.decisions))

    def _number(self, found: Any) -> float:
        try:
            return float(found.detach() if isinstance(found, torch.Tensor) else found)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
            raise BisectError(
                f"the metric {self.name} must return one number, it returned {_shortened(repr(found))}"
            ) from None


def _name_of(function: Callable[..., Any]) -> str:
    """File and name, which tell a state file what it is of."""
    named = getattr(function, "func", function)  # what a partial wraps
    code = getattr(named, "__code__", None)
    place = named.__class__.__module__ if code is None else code.co_filename
    return f"{place}:{getattr(named, '__qualname__', named.__class__.__qualname__)}"


def _place(ops: Sequence[str]) -> str:
    """What ran where, in words."""
    if not ops:
        return "everything on the device"
    return f"{'everything' if EVERYTHING in ops else ', '.join(ops)} on the host"


def _random_states() -> tuple[Any, ...]:
    """Of all that programs draw from."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), rng.get_rng_state_all()


def _restore(states: tuple[Any, ...]) -> None:
    python, numpys, torchs, devices = states
    random.setstate(python)
    np.random.set_state(numpys)
    torch.set_rng_state(torchs)
    rng.set_rng_state_all(devices)


class CommandTrial:
    """A command that prints a number; what is to go to the host it is told by ``FLROUTE_*`` variables.

    Args:
        command: program and arguments.
        pattern: whose first group, in its last match on stdout, is the number. Without one, the last line ``metric: x`` counts,
            else the last number.
        device: of ``enable``, where the program does not say.

    Raises:
        BisectError: the pattern is no regular expression.
    """

    def __init__(self, command: Sequence[str], pattern: str | None = None, device: str | None = None) -> None:
        self.command, self.name, self._device = list(command), shlex.join(command), device
        load_settings()  # what is wrong with FLROUTE_* is said here, not by each run
        try:
            self._pattern = None if pattern is None else re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise BisectError(
                f"the pattern {pattern!r} for the metric is no regular expression: {error}"
            ) from None

    def run(self, ops: Iterable[str]) -> Run:
        """Run it once, and read what it printed and what it decided."""
        with tempfile.TemporaryDirectory(prefix="flroute-bisect-") as folder:
            trace = Path(folder) / "decisions.jsonl"
            done = self._execute(trace, list(ops))
            if not trace.exists():
                raise BisectError(
                    f"the command {self.name!r} made no decisions: it must compute on a device of flroute, in a session "
                    f"(flroute.enable) that sets no trace of its own.{_shown(done)}"
                )
            decisions = read(trace).decisions
        return Run(self._metric(done), *what_ran(decisions))

    def _execute(self, trace: Path, ops: list[str]) -> subprocess.CompletedProcess[str]:
        rules, own = rules_for(ops), os.environ.get("FLROUTE_RULES")
        variables = {
            "FLROUTE_TRACE": str(trace),
            "FLROUTE_TRACE_MAX_BYTES": str(2**40),  # else a long one would be put aside between two sessions
            "FLROUTE_FALLBACK": "allow",
            "FLROUTE_RULES": json.dumps([*rules, *(json.loads(own) if own else ())]) if rules or own else "",
        }
        if self._device is not None:
            variables["FLROUTE_DEVICE"] = self._device
        try:
            done = subprocess.run(  # noqa: S603 -- the command is what the user asks to run
                self.command, env={**os.environ, **variables}, capture_output=True, text=True, errors="replace", check=False
            )  # fmt: skip
        except OSError as error:
            raise BisectError(f"the command {self.name!r} cannot be started: {error}") from None
        if done.returncode:
            hint = ""
            if "FallbackError" in done.stderr:
                hint = " Its session says fallback='error', which bisect cannot change: leave it out, or set FLROUTE_FALLBACK."
            raise BisectError(
                f"the command {self.name!r} ended with exit code {done.returncode}, with {_place(ops)}.{hint}{_shown(done)}"
            )
        return done

    def _metric(self, done: subprocess.CompletedProcess[str]) -> float:
        """The number among what was printed."""
        if self._pattern is not None:
            found = [
                match[1] if match.re.groups else match[0] for match in self._pattern.finditer(done.stdout)
            ]
            what = f"matches {self._pattern.pattern}"
        else:
            found = METRIC.findall(done.stdout) or _NUMBER.findall(done.stdout)
            what = "is a number"
        if not found:
            raise BisectError(f"nothing that the command {self.name!r} prints {what}.{_shown(done)}")
        try:
            return float(found[-1])
        except (TypeError, ValueError):
            raise BisectError(
                f"the command {self.name!r} prints {found[-1]!r} where its metric is expected, which is no number"
            ) from None


def _shown(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed, its errors first; indented, to tell it from what bisect says."""
    for stream, text in (("stderr", done.stderr), ("stdout", done.stdout)):
        if text.strip():
            lines = text.strip()[-_TOLD:].splitlines()
            return "".join(f"\n  {line}" for line in (f"{stream}:", *lines))
    return " It printed nothing."


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
