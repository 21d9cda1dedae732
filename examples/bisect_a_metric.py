"""Find the kernel that spoils a metric: a plugin's layer norm has an epsilon of its own, and the loss is not what it was.

``python examples/bisect_a_metric.py`` finds it by the loss alone, ``... loss`` prints the loss, for ``flroute bisect`` to run;
with a folder it writes ``bisect.md`` there, as in ``docs``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import flroute
from flroute import registry
from flroute.vendor import Kernel, hookimpl

Array = np.ndarray


def fast_layer_norm(
    x: Array, _shape: Sequence[int], weight: Array, bias: Array, _eps: float
) -> tuple[Array, Array, Array]:
    """One pass over the data, and a mistake: the epsilon is not the one that was asked for."""
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) - mean * mean + np.float32(1e-3))
    return (x - mean) * rstd * weight + bias, mean, rstd


class FastNorms:
    """A plugin: its kernels come before the reference vendor's own."""

    @hookimpl
    def flroute_kernels(self, vendor: str) -> Iterator[Kernel]:
        """The fast layer norm."""
        if vendor == "reference":
            yield Kernel("aten::native_layer_norm", fast_layer_norm, "fast", dtypes=(torch.float32,))


def train() -> float:
    """The loss of a small encoder after ten steps."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 6, 4)).to("fl")
    x, labels = torch.randn(32, 6, 16), torch.randint(0, 4, (32,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def by_function() -> flroute.Bisection:
    """In this process: bisect opens the sessions."""
    return flroute.bisect(train, 1e-5, device="reference", progress=False)


def by_command() -> str:
    """What a terminal shows, from a folder where this program lies."""
    python = Path(sys.executable)
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(__file__, folder)
        command = "flroute bisect --tolerance 1e-5 -- python bisect_a_metric.py loss"
        done = subprocess.run(  # noqa: S603 -- this program
            [python, "-m", *command.split()], cwd=folder, env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    return f"$ {command}\n{done.stdout.strip()}"


PAGE = """# Which kernel spoils the metric

Made by `python examples/bisect_a_metric.py docs` with PyTorch {torch}.

The loss is not what it was on the host, or the accuracy is lower by half a point, and nothing raises. `flroute.bisect` finds the
smallest set of ops whose kernels do it, by that number alone: with the host in place of these kernels, and of no others, it is
good again. It needs no second device and no reference values, only a program that can be run again.

In the example a plugin brings a layer norm whose epsilon is 1e-3, whatever it is asked for. By a function:

```python
found = flroute.bisect(train, 1e-5, device="reference")  # train() gives the loss, 1e-5 may be its error
print(found)
```

```text
{function}
```

By a command, which prints the number and opens its own session:

```text
{command}
```

A command is told what to leave to the host by `FLROUTE_RULES`, in addition to rules there; its decisions are read from
`FLROUTE_TRACE`, and `FLROUTE_FALLBACK` is `allow`. So its session must be `flroute.enable()` without a `trace`, without
`fallback="error"`, and without rules of its own for ops that are to be looked at. The number is that of the last line
`metric: x`, else the last number on stdout, else what `--metric REGEX` says: its first group, in its last match. Exit code 1 says
that ops were found, 0 that the metric is fine, 2 that it could not be told. `flroute bisect --tolerance 1e-5 file.py:train`
calls a function.

## How many runs

Three to begin with: on the device, on the device again, and with everything on the host. The first is recorded: the ops that
vendors' kernels computed are the suspects. The second finds a metric that is not the same twice. The third gives the good value,
where none is given by `good=`.

Then ops are sent to the host by halves. This is delta debugging, by prefixes: the shortest prefix of the suspects that cures
ends in an op that is needed; with it on the host the next is looked for, until those found are enough. For one op at fault among
*n* that is about log2(*n*) runs, one to see that it is enough alone, and one with all *others* on the host, to see that it
spoils the metric by itself. Where it does not, the ops are looked for which it takes (`together_with`). In all at most
2 log2(*n*) + 6, where not very many ops share a kernel; how many there are to be is said before the search begins. Each further op
takes log2(*n*) + 2 more.

Ops that share a kernel, or are forms of one op (`add` and `add_`), are first taken together. An op that PyTorch splits where its
kernel is taken away goes to the host with its parts, but for those that the device computes anyway; whether the parts may stay
where they are is tried at the end, and where they may not, `parts` names them.

Each call of a function begins with the random numbers of the first: torch's, numpy's, Python's and the devices'. A command must
seed its own.

## Interrupted

The command keeps each run in `flroute-bisect.json` (`--state`), a function where `state=` says. The same command, started again,
goes on from there; the file of another command is refused. It is removed when the search ends.

## What it says when it cannot tell

| What | What is said |
|---|---|
| the metric is good on the device | `there is nothing to look for`; no ops, exit code 0 |
| it is not the same twice | `the metric is not deterministic`, after two runs; half of the tolerance may be noise |
| it is bad with everything on the host, too | `no kernel is at fault, or not alone` (only where `good=` is given) |
| it is NaN or infinite on the device | bad, as any other; on the host: `it is no measure of the device` |
| it raises, or the command fails | the error, with what was on the host; a command's stderr |
| no number is returned or printed | what was |
| nothing is computed by a kernel | `there is nothing to replace` |
| ops stay on the device | which, and why: rules of the program's own, or a session that bisect does not reach |
"""


def page() -> str:
    """What it finds, in both ways, as Markdown."""
    return PAGE.format(
        torch=torch.__version__.partition("+")[0], function=by_function(), command=by_command()
    )


if __name__ == "__main__":
    registry.register(FastNorms(), "fast_norms")
    if sys.argv[1:] == ["loss"]:
        with flroute.enable(device="reference"):
            print(f"metric: {train()}")
    elif len(sys.argv) > 1:
        (Path(sys.argv[1]) / "bisect.md").write_text(page(), encoding="utf-8")
    else:
        print(by_function())
