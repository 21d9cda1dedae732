"""The page about many devices, with the table of collectives: ``python -m flroute.distributed.page > docs/distributed.md``."""

from __future__ import annotations

import torch

from flroute.distributed.collectives import COLLECTIVES, Ask, Collective
from flroute.distributed.host_side import REDUCED_AS_THEY_ARE, REDUCED_IN
from flroute.torch_compat import collective_ops

_HEAD = """# Many devices

This page is generated: `python -m flroute.distributed.page > docs/distributed.md`.

`flroute` is a backend of `torch.distributed` for `fl`, and the one that PyTorch takes for it when it is not told.
[examples/train_ddp.py](../examples/train_ddp.py) is a program to start from:

```python
import flroute, torch

torch.distributed.init_process_group("flroute")  # or "cpu:gloo,fl:flroute", for tensors on the host too
torch.fl.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(model.to("fl"))
```

```sh
torchrun --standalone --nproc-per-node=2 examples/train_ddp.py                              # one host
torchrun --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=host1:29500 examples/train_ddp.py    # on each of two hosts
```

DDP in all its forms (unused parameters, static graphs, sparse gradients, `SyncBatchNorm`), FSDP2 (`fully_shard`, of a model on the
host too), DTensor, tensor parallel and `torch.distributed.checkpoint` work on it. Tested: on 2 and 4 processes
a small MLP has the losses of one process to 1e-5, and a checkpoint of 4 ranks goes on with 2.

## A collective is an op

Each is an op such as `c10d::allreduce_`, routed and accounted for like `aten::mm`: it is in a session's decisions, with the bytes
that left the device and that came to it. The vendor's kernels come first. After them gloo does it, with the route `copy`: where
the host sees the device's memory gloo works on that memory itself, else on a copy; the decision says which, `on the device's own
memory` or `through a copy on the host`. A tensor with gaps between its elements is copied in any case.

"""

_AFTER_TABLE = """
What has no rank to reduce with moves in any dtype. gloo reduces {as_they_are}; {wider} go in something wider. Truth values are
reduced as "any" (SUM, MAX, BOR) and "all" (PRODUCT, MIN, BAND); complex numbers know SUM and AVG. AVG is a sum, divided
afterwards; of integers it is cut off.
Sparse tensors (COO) can be all_reduced with SUM and AVG. PREMUL_SUM, AVG of truth values and `uint64` are errors.
`monitored_barrier` is gloo's own, for the host.

## A vendor's own

A kernel for such an op, in a vendor's package or through the hook `flroute_kernels`. It receives arrays in the place of tensors,
the `torch.distributed.ProcessGroup`, and a `ReduceOp`; it writes where the op does. It returns nothing once it is done, or a
function that waits until it is. What it does not serve goes on to gloo. `process_group.rank()`, `.size()` and
`.get_group_store()` are what it takes to set up links, once for each group.

```python
import torch.distributed as dist
from flroute.vendor import Unsupported, kernel


@kernel("c10d::allreduce_", dtypes=("float32",))
def allreduce(tensors, process_group, reduce_op, sparse_indices, async_op=True, timeout=-1):
    if reduce_op != dist.ReduceOp.SUM:
        raise Unsupported("the link only adds")
    link = link_of(process_group)  # yours, made once for each group
    jobs = [link.start_sum(array) for array in tensors]
    return lambda: [job.wait() for job in jobs]
```

All ranks of a group must choose alike: a kernel that refuses by what only its own rank knows leaves the others waiting.

## When something goes wrong

Each rank says in the group's store which collective it enters: one message per call that nobody waits for. So a timeout names
op, number and ranks:

```text
CollectiveError: allreduce_ of float32 [4], SUM (#4) on rank 0 of process group '0' failed: rank 1 has not entered it (its last
was allreduce_ of float32 [4], SUM (#3)). It ended, hangs, or takes another path through the program: see what it printed last
```

Before a rank does what it has not done before at that place of the program, it reads what the others do, and waits for them:
ranks that differ in op, dtype or size get an error that names both, nothing is sent. Later calls cost nothing more; in a session
with `debug=True` each call is checked. Where ranks leave a known path in the same way, gloo gives up after the timeout of
`init_process_group`, and the error says what they disagree about. A group is broken after that. A file store (`init_method=
"file://..."`) would keep all that was ever said: with it nobody is named.

What does not fit in a rank's own call (a list of outputs that is too short, sizes that do not divide, a root that is not in the
group) is a `flroute.CollectiveError` before anything is sent or anybody is told: the group is as good as before.

An error of an asynchronous collective is raised where it is waited for: by `work.wait()`, by its future, by DDP's backward pass.
A port in use is PyTorch's `DistNetworkError` at once; it names the port.
"""

_ASKED = {
    Ask.EVERYONE: "all ranks",
    Ask.THE_ROOT: "each rank with the root",
    Ask.AS_THE_ROOT: "the root with each rank",
    Ask.NOBODY: "",
}


def to_markdown() -> str:
    """The page."""
    head = "| `torch.distributed` | op | done by | checked the first time |\n|---|---|---|---|\n"
    rows = "".join(_row(collective) for collective in COLLECTIVES.values())
    missing = sorted(set(collective_ops()) - COLLECTIVES.keys())
    rows += "".join(f"| | `{op}` | nobody: not there yet | |\n" for op in missing)
    return _HEAD + head + rows + _AFTER_TABLE.format(
        as_they_are=_names(REDUCED_AS_THEY_ARE), wider=_names(REDUCED_IN)
    )  # fmt: skip


def _row(collective: Collective) -> str:
    what = "dtype and size" if collective.same_size else "dtype"
    asked = _ASKED[collective.ask]
    return f"| {collective.function} | `{collective.op}` | {collective.note} | {f'{asked}, {what}' if asked else ''} |\n"


def _names(dtypes: frozenset[torch.dtype] | dict[torch.dtype, torch.dtype]) -> str:
    return ", ".join(sorted(f"`{str(dtype).removeprefix('torch.')}`" for dtype in dtypes))


if __name__ == "__main__":
    print(to_markdown(), end="")  # noqa: T201 -- the page is what it is run for
