"""What a bisection found: the ops, what proves it, and the setting that cures it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flroute.drift.bisect.trials import exactly
from flroute.policy import HOST
from flroute.report import counted
from flroute.tables import html_lines, html_part, html_text


@dataclass(frozen=True)
class Bisection:
    """The result of ``flroute.bisect``.

    Attributes:
        ops: the smallest set found whose kernels spoil the metric: with the host in their place it is good. Empty where it is
            good from the start.
        kernels: those of these ops, as the first run chose them.
        together_with: ops without whose kernels those of ``ops`` spoil nothing, where these do not by themselves.
        parts: ops that only come up when ``ops`` are split on their way to the host, and have to go there, too.
        suspects: how many ops the device computed.
        runs: how many runs it took, those of an interrupted search among them.
        kept: how many of these came from the state file.
        good: the metric to be had: the host's, or the one that was given.
        on_device: the metric with everything on the device.
        on_host: with everything on the host.
        cured: with only ``ops`` on the host.
        allowed: how far from ``good`` still counts as good.
    """

    ops: tuple[str, ...]
    kernels: tuple[str, ...]
    together_with: tuple[str, ...]
    parts: tuple[str, ...]
    suspects: int
    runs: int
    kept: int
    good: float
    on_device: float
    on_host: float
    cured: float
    allowed: float

    @property
    def order(self) -> dict[str, tuple[str, ...]]:
        """The setting that cures: ``flroute.enable(order=found.order)``."""
        return {exactly(op): (HOST,) for op in (*self.ops, *self.parts)}

    def to_toml(self) -> str:
        """The same for ``flroute.toml``; empty where nothing was found."""
        return "\n".join(["[order]", *(f'"{op}" = ["{HOST}"]' for op in self.order)]) if self.ops else ""

    def to_dict(self) -> dict[str, Any]:
        """Everything, in types that JSON has: a metric that is not finite is a word, ``"nan"``."""
        facts = {name: _plain(value) for name, value in asdict(self).items()}
        return {"schema_version": 1, **facts, "order": {op: list(words) for op, words in self.order.items()}}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")

    def summary(self) -> list[str]:
        """The result in lines of text."""
        near = f"within {self.allowed:.3g}"
        what = f"{counted(self.suspects, 'op')} computed by the device, {counted(self.runs, 'run')}"
        what += f", {self.kept} of them from the state file" if self.kept else ""
        if not self.ops:
            fine = (
                f"the metric is {self.on_device:.9g}, {near} of {self.good:.9g}: there is nothing to look for"
            )
            return [fine, what]
        whose = "its" if len(self.ops) == 1 else "their"
        proof = (
            f"{self.on_device:.9g}, with the host in their place {self.cured:.9g}, {near} of {self.good:.9g}"
        )
        lines = [f"{' and '.join(self.ops)}: with {whose} kernels the metric is {proof}"]
        lines.append(f"kernels: {', '.join(self.kernels)}")
        if self.together_with:
            both = f"only together with {' and '.join(self.together_with)}: with either side on the host the metric is good"
            lines.append(both)
        if self.parts:
            lines.append(
                f"on its way to the host it is split into {', '.join(self.parts)}, which went there, too"
            )
        return [*lines, what]

    def __str__(self) -> str:
        cure = f"\n\nuntil that is mended, in flroute.toml:\n\n{self.to_toml()}" if self.ops else ""
        return "\n".join(self.summary()) + cure

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook."""
        return html_part(html_lines(self.summary()), *([html_text(self.to_toml())] if self.ops else []))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
