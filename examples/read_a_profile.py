"""Read a profile: where the time of a training step goes, and what is far slower than on the host.

Run it with ``python examples/read_a_profile.py``; with a folder it writes ``profile.md`` there, as in ``docs``.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import flroute
from flroute.profile import Profile


def train() -> Profile:
    """One step of a small network, once the routes are known; the host is asked, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to("fl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(32, 64).to("fl"), torch.zeros(32, dtype=torch.int64).to("fl")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    with flroute.enable(device="reference", fallback="allow", default_device=False) as session:
        step()
        with session.profile(against_host=True) as profile:
            step()
    return profile


def page(profile: Profile) -> str:
    """The profile and how to get it, as Markdown."""
    text = io.StringIO()
    Console(file=text, width=200, color_system=None, force_jupyter=False).print(profile)
    table = "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
    return (
        "# A profile\n\nMade by `python examples/read_a_profile.py docs` with PyTorch "
        f"{torch.__version__.partition('+')[0]}: a training step of a small network; times are of the machine it ran on.\n\n"
        '```python\nwith flroute.enable(device="reference") as session:\n'
        "    with session.profile(against_host=True, slower_than=3) as profile:\n        step()\n"
        'print(profile)\nprofile.to_chrome_trace("trace.json")  # chrome://tracing, https://ui.perfetto.dev\n```\n\n'
        f"```text\n{table}\n```\n\n"
        "A line adds up the kernels, copies and fallbacks of one op. Its time is what the kernel took, without routing. With\n"
        "`against_host=True` the host is timed as well, on copies of the arguments, before the first call of each signature: "
        "`times host`\ncompares the fastest call on each side. `modules=True` adds the modules under way to the trace.\n\n"
        "`torch.profiler.profile()` shows the same kernels by name, in `Self FL` and `FL total`; "
        '`table(sort_by="self_fl_time_total")`\nsorts by them, `profile_memory=True` adds the bytes of results, '
        "`with_modules=True` a range for each call of a module, and\n`export_chrome_trace(path)` has a track for each device "
        "and stream. While nobody profiles, a call pays nothing for this; inside\na profile, about two microseconds.\n"
    )


def write(folder: Path) -> None:
    """``profile.md`` in a folder."""
    (folder / "profile.md").write_text(page(train()), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    else:
        print(page(train()))
