"""What the doctor's checks are made of: a state, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 2


class State(str, Enum):
    """How a check ended; the words are printed, so that the colours need not be seen."""

    GREEN = "green"  #: as it should be
    YELLOW = "yellow"  #: it works, and could do better
    RED = "red"  #: something does not work


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis.

    Attributes:
        about: what was looked at.
        state: how it ended.
        found: what was found.
        remedy: what to do about it; there is one unless the state is green.

    Raises:
        ValueError: yellow or red without a remedy.

    Example:
        >>> Check("torch", State.YELLOW, "2.16.0, not tested yet", "install 2.15 if something misbehaves").remedy
        'install 2.15 if something misbehaves'
    """

    about: str
    state: State
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state is not State.GREEN and not self.remedy:
            raise ValueError(f"the check of {self.about!r} is {self.state.value} and must say what to do")


@dataclass(frozen=True)
class Diagnosis:
    """Every check, in the order they were made."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is red."""
        return not self.of(State.RED)

    def of(self, state: State) -> list[Check]:
        """The checks that ended so."""
        return [check for check in self.checks if check.state is state]

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        checks = [{**asdict(check), "state": check.state.value} for check in self.checks]
        return {"schema_version": SCHEMA_VERSION, "healthy": self.healthy, "checks": checks}

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        styles = {State.GREEN: "green", State.YELLOW: "yellow", State.RED: "bold red"}
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in self.checks:
            found = Text(check.found)
            if check.remedy:
                found.append(f"\nto do: {check.remedy}", "bold")
            table.add_row(Text(check.state.value, styles[check.state]), check.about, found)
        return Group(table, "", Text(_counted(self.checks)))


def _counted(checks: Iterable[Check]) -> str:
    """How many checks ended in each state: ``12 green, 1 yellow, 0 red``."""
    states = [check.state for check in checks]
    return ", ".join(f"{states.count(state)} {state.value}" for state in State)
