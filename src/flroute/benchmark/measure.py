"""One case on a device and on the host, and what a run of several cases found."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import flroute
from flroute.benchmark.cases import Case
from flroute.benchmark.timing import Work, calls_that_take, compare
from flroute.device_names import resolve_device
from flroute.errors import FlrouteError

SCHEMA_VERSION = 1
ROUNDS = 11
_ROUND_SECONDS = 0.004
"""What one measurement of one side takes, at least."""


@dataclass(frozen=True)
class Row:
    """What was measured of one case.

    Attributes:
        name: of the case.
        device_seconds: of one call on the device, the median over the rounds.
        host_seconds: the same of the host.
        ratio: how many times as fast as the host the device is: the median of host / device within each round.
        fallbacks: ops of it that the host computed for the device.
        samples: how many go through a model in a call; ``None`` if it is no model.
    """

    name: str
    device_seconds: float
    host_seconds: float
    ratio: float
    fallbacks: tuple[str, ...] = ()
    samples: int | None = None


@dataclass(frozen=True)
class Results:
    """What a run found, and where.

    Attributes:
        device: the vendor's name for it, ``reference:0``.
        version: the vendor's.
        torch: PyTorch's version.
        threads: that PyTorch used on the host.
        rows: by case.
    """

    device: str
    version: str
    torch: str
    threads: int
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Raises:
            FlrouteError: the file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise FlrouteError(f"{path} cannot be written: {error}") from error


@dataclass(frozen=True)
class Change:
    """A case that was measured in two runs.

    Attributes:
        name: of the case.
        before: how many times as fast as the host the device was.
        after: the same now.
    """

    name: str
    before: float
    after: float

    def is_regression(self, tolerance: float) -> bool:
        """Whether the device lost more than ``tolerance`` of its speed relative to the host's.

        Example:
            >>> Change("add", before=2.0, after=1.7).is_regression(0.2), Change("add", 2.0, 1.5).is_regression(0.2)
            (False, True)
        """
        return self.after < self.before * (1 - tolerance)


def read(path: str | os.PathLike[str]) -> Results:
    """The results in a file.

    Raises:
        FlrouteError: there is none, or it is not one that this flroute reads.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FlrouteError(
            f"{path} cannot be read: {error}; `flroute bench --save FILE` writes one"
        ) from error
    schema_version = found.get("schema_version") if isinstance(found, dict) else None
    if schema_version != SCHEMA_VERSION:
        raise FlrouteError(
            f"{path}: schema version {schema_version!r}, this flroute reads {SCHEMA_VERSION}; measure anew: flroute bench --save"
        )
    try:
        rows = tuple(Row(**{**row, "fallbacks": tuple(row["fallbacks"])}) for row in found["rows"])
        return Results(found["device"], found["version"], found["torch"], found["threads"], rows)
    except (KeyError, TypeError) as error:
        raise FlrouteError(
            f"{path}: not results of `flroute bench`: {type(error).__name__}: {error}; measure anew: flroute bench --save"
        ) from error


def changes(before: Results, after: Results) -> list[Change]:
    """The cases of both runs, the greatest loss first.

    The ratios are compared, not the times: host and device were measured in turn, so a slower machine changes neither.

    Raises:
        FlrouteError: they have no case in common.
    """
    known = {row.name: row.ratio for row in before.rows}
    found = [Change(row.name, known[row.name], row.ratio) for row in after.rows if row.name in known]
    if not found:
        raise FlrouteError(
            f"the two runs have no case in common: the first has {', '.join(known) or 'none'}; "
            f"measure the same op, shapes and dtypes"
        )
    return sorted(found, key=lambda change: change.after / change.before)


def run(cases: Iterable[Case], *, device: str | None = None, rounds: int = ROUNDS) -> Results:
    """Measure each case on a device and on the host in turn, in wall time.

    Args:
        cases: see ``cases.py``, ``ops.py`` and ``models.py``.
        device: as for ``flroute.enable``.
        rounds: measurements of each case.

    Raises:
        FlrouteError: a case cannot run; the message names it.
        UnknownVendorError, DeviceError: as for ``flroute.enable``.

    Example:
        >>> from flroute.benchmark.ops import op_case
        >>> results = run([op_case("aten::relu", [(4, 4)])], device="reference", rounds=1)
        >>> [row.name for row in results.rows], results.rows[0].ratio > 0
        (['aten::relu 4x4 float32'], True)
    """
    there = resolve_device(device)
    version = next(vendor.version for vendor in flroute.vendors() if vendor.name == there.vendor)
    rows = tuple(_measured(case, there.torch_device, rounds) for case in cases)
    return Results(there.vendor_device, version, torch.__version__, torch.get_num_threads(), rows)


def _measured(case: Case, device: torch.device, rounds: int) -> Row:
    session = partial(flroute.enable, device, default_device=False, fallback="allow")
    on_host = case.make(*case.inputs())
    _try(case, on_host, "the host")
    with session() as tried:
        on_device = case.make(*(_moved(x, device) for x in case.inputs()))
        _try(case, on_device, str(device))

    def wall_clock() -> float:
        torch.fl.synchronize(device)  # type: ignore[attr-defined]
        return time.perf_counter()

    with session():
        calls = calls_that_take(_ROUND_SECONDS, on_device, wall_clock)
    calls = min(calls, calls_that_take(_ROUND_SECONDS, on_host, wall_clock))
    found = compare(on_device, on_host, calls, rounds=rounds, session=session, clock=wall_clock)
    fallbacks = tuple(dict.fromkeys(decision.op for decision in tried.fallbacks))
    return Row(case.name, found.routed / 1e6, found.baseline / 1e6, 1 / found.ratio, fallbacks, case.samples)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor | torch.nn.Module) else value


def _try(case: Case, work: Work, where: str) -> None:
    """Once before it is timed: a mistake in shapes shows here."""
    try:
        work()
    except FlrouteError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise FlrouteError(f"{case.name}: on {where}: {type(error).__name__}: {error}") from error
