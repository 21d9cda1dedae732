"""The page about ``torch.fl``, made from the names of ``torch.cuda``: ``python -m flroute.torch_fl_page > docs/torch_fl.md``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from flroute.device import torch_fl
from flroute.device.torch_fl.absent import NEAREST, plain_name, why_absent

DOCUMENTED_SUBMODULES = (
    "amp", "comm", "gds", "graphs", "green_contexts", "jiterator", "memory", "nccl", "nvtx", "profiler", "random", "sparse",
    "streams", "tunable",
)  # fmt: skip
"""Parts of ``torch.cuda`` that its documentation has."""


_DOCUMENTED_PRIVATE_NAMES = ("_dump_snapshot", "_record_memory_history", "_snapshot")
"""Of ``torch.cuda.memory``; PyTorch's page about the use of memory tells everybody to call them."""


class State(str, Enum):
    """What becomes of a name."""

    SAME = "same"
    NEAREST = "nearest form"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class Row:
    """One name of ``torch.cuda``: what ``torch.fl`` has for it, and what there is to say."""

    name: str
    state: State
    note: str


def cuda_names() -> list[str]:
    """Every public name of ``torch.cuda``, its errors too; those of a submodule with it unless ``torch.cuda`` has them, too."""
    names = set(torch.cuda.__all__)
    for part in DOCUMENTED_SUBMODULES:
        names.add(part)
        module = importlib.import_module(f"torch.cuda.{part}")
        names |= {
            f"{part}.{name}" for name in getattr(module, "__all__", ()) if name not in torch.cuda.__all__
        }
    names |= {
        name
        for name, value in vars(torch.cuda).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    names |= {f"memory.{name}" for name in _DOCUMENTED_PRIVATE_NAMES}
    return sorted(names, key=lambda name: (name.lower(), name))


def row_of(name: str) -> Row:
    """What becomes of one name."""
    found: Any = torch_fl
    try:
        for part in plain_name(name).split("."):
            found = getattr(found, part)
    except AttributeError:
        reason = why_absent(name)
        return Row(name, State.MISSING if reason is None else State.REFUSED, reason or "")
    note = NEAREST.get(plain_name(name))
    return Row(name, State.SAME if note is None else State.NEAREST, note or "")


def to_markdown() -> str:
    """The page."""
    rows = [row_of(name) for name in cuda_names()]
    counts = ", ".join(
        f"{sum(row.state is state for row in rows)} {state.value}"
        for state in State
        if state != State.MISSING
    )
    lines = [f"| `{row.name}` | {row.state.value} | {row.note} |\n" for row in rows]
    release = ".".join(map(str, torch.__version__.split(".")[:2]))
    head = f"\n## Every name of torch.cuda\n\nOf PyTorch {release}: {counts}.\n\n| torch.cuda | torch.fl | |\n|---|---|---|\n"
    return _HEAD + head + "".join(lines)


_HEAD = """# torch.fl

This page is generated: `python -m flroute.torch_fl_page > docs/torch_fl.md`.

`torch.fl` has the names of `torch.cuda`, and what works on cuda works here. A name that is not there is an `AttributeError` that
says why, so `hasattr(torch.fl, name)` tells the truth. `torch.accelerator`, `torch.Stream("fl:1")`, `torch.Event("fl")` and
`torch.get_device_module("fl")` agree with it.

## Streams and events

```python
side = torch.fl.Stream()
with torch.fl.stream(side):
    y = x @ x
torch.fl.current_stream().wait_stream(side)

start, end = (torch.fl.Event(enable_timing=True) for _ in range(2))
start.record()
step()
end.record()
end.synchronize()
start.elapsed_time(end)  # milliseconds
```

How a stream works is the vendor's `flroute.vendor.Streams`. As it stands it is for kernels that have finished when they return, as
the reference vendor's have: a stream is then a name, nothing ever waits, and times are true. A vendor whose kernels go on after
they return overrides it, and its kernels ask `streams.current(device)` where to put their work. A stream of another device, an
event timed before it was recorded or made without timing, and two events of different devices are a `StreamError`, which is a
`ValueError` too.

## Memory

`FLROUTE_ALLOC_CONF` sets the pools that vendors' memory comes from, in the style of `PYTORCH_CUDA_ALLOC_CONF`; what the vendor
chose itself gives way to it. `alloc_conf` in `flroute.toml` or `[tool.flroute]` takes the same as a table.

| key | meaning |
|---|---|
| `max_split_size_mb` | blocks above so many MiB are not split, so that they stay there for large requests |
| `garbage_collection_threshold` | once more than this part of the limit would be reserved, unused segments are given back first |
| `roundup_power2_divisions` | sizes are rounded up to one of so many steps between two powers of two (16) |
| `per_process_memory_fraction` | the part of a device's memory that its pool may reserve |

`torch.fl.memory_stats()["pool.requests"]` and `["pool.new_segments"]` say how much of the memory asked for was there already.

## Random numbers

A device draws from the host's stream: one seed gives the same numbers on both, so that runs can be compared. After
`torch.fl.manual_seed(n)` a device has a state of its own, 16 bytes as cuda's are: the seed and an offset. `torch.manual_seed` sends
every device back to the host's stream, and so does restoring a state that was saved while it drew from it. DTensor, whose
ranks each draw their part of one stream, gives a device its own: the host's seed.

`torch.random.fork_rng(device_type="fl")` and activation checkpointing keep both. In a checkpoint of your own, save
`torch.fl.get_rng_state_all()` beside `torch.get_rng_state()`.

## What PyTorch keeps to backends written in C++

- `torch.Generator("fl")` is a `NotImplementedError`. Pass `torch.Generator()`, the host's: ops on `fl` draw from it. The state of a
  device itself is `torch.fl.get_rng_state()`.
- Host memory needs no pinning. `torch.empty(n, pin_memory=True)` is ordinary memory that says `is_pinned()`; `pin_memory()` gives
  the tensor itself, which does not, and `DataLoader(pin_memory=True)` works, with `pin_memory_device="fl"` too.
- `tensor.to(..., non_blocking=True)` works; when it returns, the copy is done, or ordered before all later work.
- `np.asarray(x)` and `x.numpy()` of a tensor on `fl` are a `TypeError`, as on cuda: `x.cpu().numpy()`, or `x.numpy(force=True)`.
- A tensor on `fl` sent to another process is a `DeviceError`: send `x.cpu()`.
"""

if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
