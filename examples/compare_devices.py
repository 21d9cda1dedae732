"""Compare a device with the host: a kernel with a wrong epsilon, found by one run.

Run it with ``python examples/compare_devices.py``; with a folder it writes ``compare.md`` and ``compare.html`` there, as in
``docs``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import flroute
from flroute import registry
from flroute.vendor import Kernel, hookimpl


def hasty_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:  # noqa: ARG001 -- that is the fault
    """A kernel that takes 1e-3 for the epsilon, whatever it was given."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = x.mean(axes, keepdims=True)
    rstd = (1 / np.sqrt(x.var(axes, keepdims=True) + 1e-3)).astype(x.dtype)
    return (x - mean) * rstd * weight + bias, mean, rstd


class Hasty:
    """A plugin that brings this kernel to the reference vendor, where it comes first."""

    @hookimpl
    def flroute_kernels(self, vendor: str) -> Iterable[Kernel]:
        """One, for float32."""
        if vendor == "reference":
            yield Kernel(
                "aten::native_layer_norm", hasty_layer_norm, dtypes=(torch.float32,), implementation="hasty"
            )


class Block(nn.Module):
    """Normalize, widen, and add to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One residual step."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make() -> tuple[nn.Module, torch.Tensor]:
    """The model and its inputs, as ``flroute compare examples/compare_devices.py:make`` takes them."""
    return nn.Sequential(nn.Linear(8, 8), Block(8), Block(8), nn.Linear(8, 2)), torch.randn(4, 8)


def as_text(table: object) -> str:
    """What a terminal of 150 columns shows."""
    text = io.StringIO()
    Console(file=text, width=150, color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def write(folder: Path | None) -> str:
    """The page as Markdown; with a folder both pages are written there, too."""
    torch.manual_seed(0)
    model, inputs = make()
    right = flroute.compare(model, inputs, a="reference")
    consistent = flroute.consistency(model, inputs, "reference")
    registry.register(Hasty(), "hasty")
    wrong = flroute.compare(model, inputs, a="reference")
    text = PAGE.format(
        torch=torch.__version__.partition("+")[0],
        wrong=as_text(wrong),
        right="\n".join(right.summary()),
        consistent=as_text(consistent),
    )
    if folder is not None:
        (folder / "compare.md").write_text(text, encoding="utf-8")
        wrong.to_html(folder / "compare.html")
    return text


PAGE = """# Where the numbers part

Made by `python examples/compare_devices.py docs` with PyTorch {torch}. A kernel for layer norm takes another epsilon than it was
given: the model still trains, and is a little worse. With that kernel installed, one run finds it:

```console
$ flroute compare examples/compare_devices.py:make --a reference --html compare.html
```

```text
{wrong}
```

[The same as a page](compare.html), with a plot of the error along the depth of the model. In Python it is
`flroute.compare(model, inputs, a="reference", b="cpu")`, whose result has `passed`, `first_divergence`, `worst_layer`, `culprits`
and `to_dict()`. The command exits with 1 if something is beyond its tolerance.

## How to read it

- The first table has each tensor that both runs have: outputs of layers, the gradients these get, gradients of parameters and
  inputs, buffers, and the model's results. Errors build up along a model, so what is allowed here is what rounding can build
  up: 16 units in the last place of the largest element, and 8 times what the host itself is off there, which running it in
  float64 tells.
- The second table has single ops, each with its *local* error: the host computes the op again, in float64, from the very
  arguments the device was given. An op that inherits an error has none of its own, and is not blamed. Its tolerance is
  [that of its class and dtype](tolerances.md), or the vendor's own; `by` says whose. Shown are the worst; a page and JSON have all.
- Parameters, inputs and seeds are the same on both sides. Where a device draws other random numbers than the host, or puts equal
  elements in another order, the report says so, and what comes after is judged op by op only.
- Where data sends the device another way, the report says which op ran where the other ran another, in which module, and which
  value was read before. Where the same is computed by other ops, that is a note and no finding.
- The backward pass begins, for each output, with cos(0), cos(1), ... as its gradient, unless you give a `loss=`.

Without that kernel:

```text
{right}
```

## Devices on different machines

```console
$ flroute record examples/compare_devices.py:make --device reference -o there.flrun
$ flroute record examples/compare_devices.py:make --device cpu -o here.flrun
$ flroute compare there.flrun here.flrun
```

A record has results, gradients and local errors, with the versions of flroute, PyTorch and the vendor. Tensors of layers are kept
whole up to 65,536 elements, results of single ops up to 4,096; of larger ones 4,096 elements spread over them, and their
statistics. Local errors are of all elements. Records of different models, checkpoints, inputs or seeds are refused, with what
differs.

## As trained, as served

```console
$ flroute consistency examples/compare_devices.py:make --device reference
```

```text
{consistent}
```

`--backend NAME` compiles by another backend of `torch.compile`. What that makes has no layers, so only results are compared.
"""


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
