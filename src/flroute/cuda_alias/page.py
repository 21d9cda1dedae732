"""The page about ``flroute run``: ``python -m flroute.cuda_alias.page > docs/run.md``."""

from __future__ import annotations

import torch

from flroute.cuda_alias.advice import INSTEAD_OF
from flroute.cuda_alias.patches import Patch
from flroute.cuda_alias.table import patches

_HEAD = """\
# Scripts for cuda, as they are

This page is generated: `python -m flroute.cuda_alias.page > docs/run.md`.

```sh
flroute run train.py --epochs 3                      # what python train.py --epochs 3 would do on a machine with cuda
flroute run --strict --device vendor:1 train.py      # on that device; an error where only the host could do the work
flroute run --report run.json -m package.train       # as python -m does; the report as JSON, in place of stderr
torchrun --nproc-per-node=2 -m flroute run train.py  # one report for each rank
```

Arguments after the script are the script's. Its exit code and its traceback are its own; at the end comes a report of what ran
where, what fell back, and what was redirected, by name and line. In a notebook or a test `flroute.enable(alias=("cuda",))` does
the same for a block of code, and `FLROUTE_ALIAS=cuda` for every session.

## What cuda is

- `cuda:0` is the session's device, `cuda:1` the next one of the same vendor, and so on. `CUDA_VISIBLE_DEVICES` chooses among
  them, also from inside a script, before it first needs one. `cuda` without a number is the thread's current device.
- A tensor on the device says `cuda`: `x.device == torch.device("cuda:0")`, `str(x.device) == "cuda:0"`, `x.is_cuda`,
  `x.get_device() == 0`. All of these lead back to it: `torch.zeros(2, device=x.device)`, `.to(str(x.device))`,
  `.to(x.get_device())`.
- Only the script and its libraries are told so. PyTorch and flroute hear the truth, or PyTorch would take its ways for CUDA's
  own hardware: `print(x)` shows `device='fl:0'`, and so do decisions and reports. `torch.device` itself is not replaced.
- New tensors land on the host unless they are told otherwise, as they do with cuda (`default_device=True` changes that).
- Files that `torch.save` writes say `cuda:0`: they can be read on a machine with cuda, and its files here.
- `torch.compile` compiles: what Dynamo reads in the script's code is what the same line would hear if it ran, and the graphs that
  come of it name the device itself. Calls that flroute answers otherwise (streams, events, `with torch.cuda.device(1)`,
  `torch.cuda.synchronize()`), and functions that were allowed in graphs, run as they stand, outside of a graph; each is named in
  the log, and `fullgraph=True` is not insisted on. Inductor has no code for the device: its graphs run op by op, as those of
  `aot_eager` do. Compiled code is for what cuda meant to it: other devices, or none, compile it anew.
- `torch.jit.script` returns what it is given, as with `PYTORCH_JIT=0`: scripted code would branch on the truth, and what was
  scripted before the session does. `torch.jit.trace` records what runs.
- `torch.version.cuda` is `None`, as with PyTorch for ROCm: nothing of CUDA is installed.
- A kernel that a script registers for `cuda` with `torch.library` is one for the device, also after the session.
- A generator of cuda's is one of the host's, from which the device draws.
- A process with a real CUDA device is refused, unless `--hide-cuda` (`hide_cuda=True`) says that it may be hidden.

At the end of a session, however it ends, everything is what it was before, flags of `torch.backends` that the script set included.

## Threads and processes

Threads that are started inside a session hear of cuda until it ends; those that were there before join it with
`session.attach()`. A session of `flroute run` ends with the process, after its threads, its executors and the handlers that the
script gave to `atexit`. Processes that a script under `flroute run` starts (`torch.multiprocessing.spawn`, workers of a DataLoader,
a program of its own) get the same device and policy: `FLROUTE_SESSION=1` in their environment has `import torch` open a session for
the whole process. What they did is added up in the report, which says how many they were, and how many left none because they
were killed or are running still; under torchrun each rank has a report of its own. In both, what flroute logs as info, such as
each route, is kept out of the script's own log: `logging.getLogger("flroute").setLevel(logging.INFO)` shows it.

## What it costs

Each call of a PyTorch function passes through one more mode in Python: 2.8 µs on an addition of two 4x4 tensors that takes 11.3
(medians of 25 rounds in turn, processor time), less than the default device (3.5), which such a session goes without. `x.device`
takes 3.7 µs. Backward passes pay nothing for it outside code of the script's own.

## What is redirected

Of PyTorch {release}:

| of | names | to |
|---|---|---|
"""

_REFUSED = """
## What is refused

An `AliasError` when it is called, which says why.

| name | why |
|---|---|
"""

_PACKAGES = """
Packages whose kernels are compiled for CUDA cannot be stood in for. Where one is missing, the error says what serves in its place,
and so does that of `torch.utils.cpp_extension`.

| package | instead |
|---|---|
"""


def to_markdown() -> str:
    """The page."""
    every = list(patches())
    redirected = [patch for patch in every if not patch.refuses and patch.meaning]
    refused = {f"{patch.owner}.{patch.name}": patch.meaning for patch in every if patch.refuses}
    rows = "".join(
        f"| `{owner}` | {names} | {meaning} |\n" for owner, names, meaning in _by_meaning(redirected)
    )
    release = ".".join(torch.__version__.split(".")[:2])
    tensors = "`device=`, `.to`, `.cuda`, `.type`, `.device`, `.is_cuda`, `.get_device`, `pin_memory`"
    return (
        _HEAD.format(release=release)
        + f"| tensors and factories | {tensors} | the device |\n{rows}"
        + _REFUSED
        + "".join(f"| `{name}` | {why} |\n" for name, why in sorted(refused.items()))
        + _PACKAGES
        + "".join(f"| `{package}` | {instead} |\n" for package, instead in INSTEAD_OF.items())
    )


def _by_meaning(found: list[Patch]) -> list[tuple[str, str, str]]:
    """Owner, names and meaning; what ``torch.fl`` has under the same name is one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for patch in found:
        same = patch.meaning == f"`torch.fl.{patch.name}`"
        meaning = "what `torch.fl` has under that name" if same else patch.meaning
        groups.setdefault((patch.owner, meaning), []).append(patch.name)
    return [
        (owner, ", ".join(f"`{name}`" for name in dict.fromkeys(names)), meaning)
        for (owner, meaning), names in groups.items()
    ]


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
