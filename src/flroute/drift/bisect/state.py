"""The runs of an interrupted search, kept in a file so that the next one goes on from there."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flroute.drift.bisect.trials import Run
from flroute.errors import BisectError

_VERSION = 1


class KeptRuns:
    """Runs by what was asked for, in memory and, where a path is given, in a file after each.

    Args:
        path: of the file, or ``None``.
        trial: what is run; a file of another one is refused.

    Raises:
        BisectError: the file is of another trial or PyTorch, or is none of ours.
    """

    def __init__(self, path: Path | None, trial: str) -> None:
        self._path, self._trial = path, trial
        self._runs: dict[str, Run] = {} if path is None or not path.exists() else self._read(path)
        self.kept = len(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, asked: str) -> Run | None:
        """The run that was asked for, if there was one."""
        return self._runs.get(asked)

    def put(self, asked: str, run: Run) -> None:
        """Keep a run: the file is whole at any time."""
        self._runs[asked] = run
        if self._path is None:
            return
        whole = {
            "kind": "flroute bisect",
            "version": _VERSION,
            "trial": self._trial,
            "torch": torch.__version__,
            "runs": {asked: asdict(run) for asked, run in self._runs.items()},
        }
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(whole, indent=1), encoding="utf-8")
            beside.replace(self._path)
        except OSError as error:
            raise BisectError(f"the state file {self._path} cannot be written: {error}") from None

    def forget(self) -> None:
        """Remove the file: the search has ended, and a later one is to look at what is there then."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[str, Run]:
        remedy = "Remove it, or name another file."
        try:
            whole: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # both JSON's errors and those of decoding are ValueErrors
            raise BisectError(f"the state file {path} cannot be read: {error}. {remedy}") from None
        if (
            not isinstance(whole, dict)
            or whole.get("kind") != "flroute bisect"
            or whole.get("version") != _VERSION
        ):
            raise BisectError(f"{path} is no state file of this flroute. {remedy}")
        for what, now in (("trial", self._trial), ("torch", torch.__version__)):
            if whole.get(what) != now:
                whose = f"PyTorch {whole.get(what)}" if what == "torch" else repr(whole.get(what))
                asked = f"PyTorch {now}" if what == "torch" else repr(now)
                raise BisectError(f"the state file {path} is of {whose}, and this is {asked}. {remedy}")
        try:
            return {asked: _run(record) for asked, record in whole["runs"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BisectError(f"the state file {path} is damaged: {error!r}. {remedy}") from None


def _run(record: dict[str, Any]) -> Run:
    native = {op: tuple(kernels) for op, kernels in record["native"].items()}
    return Run(float(record["metric"]), native, tuple(record["sent"]))
