"""Read a report: a training step of a small encoder, as a terminal, a page and a program see it.

Run it with ``python examples/read_a_report.py``; with a folder it writes ``report.md`` and ``report.html`` there, as in
``docs``.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import nn
from torch.distributions import Gamma

import flroute
from flroute.report import Report

HERE = f"{Path(__file__).resolve().parent}/"


class Attention(nn.Module):
    """One head with noise whose size it learns: for the gradient of that the reference vendor has no kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, and multiply by noise that is 1 in the mean."""
        weights = torch.softmax(self.query(x) @ self.key(x).mT, dim=-1)
        certainty = self.value(x).exp()
        return x + weights @ self.value(x) * Gamma(certainty, certainty, validate_args=False).rsample()


class Encoder(nn.Module):
    """Two layers of attention and a head."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.ModuleList(nn.ModuleDict({"attention": Attention(width)}) for _ in range(2))
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Layer after layer."""
        for layer in self.layer:
            x = layer["attention"](x)
        return self.head(x)


def train() -> Report:
    """One step on the device, every call counted for its module and phase."""
    torch.manual_seed(0)
    model = Encoder().to("fl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with flroute.enable(device="reference", fallback="allow", modules=True) as session:
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
    return with_short_call_sites(session.report())


def with_short_call_sites(report: Report) -> Report:
    """The same wherever this file lies: lines are wrapped by their length."""
    decisions = [
        replace(d, call_site=d.call_site and d.call_site.replace(HERE, "")) for d in report.decisions
    ]
    return Report(decisions, device=report.device, settings=report.settings)


def as_text(table: object) -> str:
    """What a terminal of 140 columns shows."""
    text = io.StringIO()
    Console(file=text, width=140, color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def page(report: Report) -> str:
    """The report in its forms, as Markdown."""
    fallback = json.dumps(asdict(report.fallbacks[0]), indent=1)
    return (
        f"# A report\n\nMade by `python examples/read_a_report.py docs` with PyTorch {torch.__version__.partition('+')[0]}: "
        "a training step of a small encoder. [The same as a page](report.html) is `session.report().to_html(path)`.\n\n"
        f'`print(session.report().sorted_by("calls"))`:\n\n```text\n{as_text(report.sorted_by("calls"))}\n```\n\n'
        f'`print(session.report().grouped_by("module"))`:\n\n```text\n{as_text(report.grouped_by("module"))}\n```\n\n'
        f'`print(session.report().grouped_by("phase"))`:\n\n```text\n{as_text(report.grouped_by("phase"))}\n```\n\n'
        f"One of `session.fallbacks`, as in `session.report().to_json(path)`:\n\n```json\n{fallback}\n```\n"
    )


def write(folder: Path) -> None:
    """``report.md`` and ``report.html`` in a folder."""
    report = train()
    (folder / "report.md").write_text(page(report), encoding="utf-8")
    report.sorted_by("calls").to_html(folder / "report.html")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    else:
        print(page(train()))
