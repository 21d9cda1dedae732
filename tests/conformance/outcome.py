"""The verdict of one test over several modes: what failed, and whether it was declared to."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

import pytest

from .declared import reason


class Outcome:
    """Collects the first failure of each mode, then gives the verdict.

    Args:
        op: as in the test's id.
        dtype: such as ``float32``.
        modes: those that run.

    Attributes:
        failures: the first failure of each mode.
        trials: how many calls the host answered, so that the device had to.
    """

    def __init__(self, op: str, dtype: str, modes: Iterable[str]) -> None:
        self.op, self.dtype = op, dtype
        self.failures: dict[str, str | None] = dict.fromkeys(modes)
        self.trials = 0

    @property
    def open_modes(self) -> list[str]:
        """The modes in which nothing has failed yet."""
        return [mode for mode, failure in self.failures.items() if failure is None]

    def fail(self, mode: str, what: str, error: BaseException) -> None:
        """Note the first failure of a mode."""
        last = "".join(traceback.format_exception(error)[-4:])
        self.failures[mode] = f"{self.op} {self.dtype} [{mode}] {what}\n{last}"

    def verdict(self) -> None:
        """Pass, fail, or expected failure; a declared mode that passes is a failure. Skip if the host refused all."""
        if not self.trials:
            pytest.skip("the host refuses every sample")
        declared = {mode: reason(self.op, self.dtype, mode) for mode in self.failures}
        rotten = [mode for mode, why in declared.items() if why and self.failures[mode] is None]
        unexpected = [failure for mode, failure in self.failures.items() if failure and not declared[mode]]
        if unexpected:
            pytest.fail("\n".join(unexpected), pytrace=False)
        if rotten:
            pytest.fail(
                f"{self.op} {self.dtype} works in {rotten}: remove it from declared.py", pytrace=False
            )
        if any(self.failures.values()):
            pytest.xfail("; ".join(sorted({why for why in declared.values() if why})))
