"""What each rank runs in ``test_collectives.py``: every collective on the device and on the host, where gloo is the judge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import flroute

Put = Callable[[torch.Tensor], torch.Tensor]


def mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Elements that differ between ranks."""
    numel = int(torch.tensor(shape).prod())
    return (torch.arange(numel) % 5 + 1 + 3 * dist.get_rank()).reshape(shape).to(dtype)


def blank(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 99).to(dtype)


def reduced(op: Any, dtype: torch.dtype = torch.float32) -> Callable[[Put], Any]:
    def run(put: Put) -> torch.Tensor:
        x = put(mine(3, 2, dtype=dtype))
        dist.all_reduce(x, op=op)
        return x

    return run


def summed_by_hand(dtype: torch.dtype, op: Any = ReduceOp.SUM) -> Callable[[Put], Any]:
    """For what gloo refuses on the host, or does differently in other releases."""

    def run(put: Put) -> torch.Tensor:
        x = put(mine(3, dtype=dtype))
        if x.device.type != "cpu":
            dist.all_reduce(x, op=op)
            return x
        ranks = dist.get_world_size()
        total = sum(
            (torch.arange(3) % 5 + 1 + 3 * rank).to(dtype).to(torch.complex128) for rank in range(ranks)
        )
        total = total / ranks if op == ReduceOp.AVG else total
        if dtype == torch.bool:
            total = total.real > 0
        return (
            total.to(dtype)
            if dtype.is_complex or dtype == torch.bool
            else total.real.to(torch.float64).trunc().to(dtype)
            if not dtype.is_floating_point
            else total.real.to(dtype)
        )

    return run


def on_bools(op: Any, by_hand: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Put], Any]:
    def run(put: Put) -> torch.Tensor:
        every = torch.tensor([[i % 2 == 0, True, False] for i in range(dist.get_world_size())])
        x = put(every[dist.get_rank()].clone())
        if x.device.type == "cpu":
            return by_hand(every)
        dist.all_reduce(x, op=op)
        return x

    return run


def coalesced(put: Put) -> Any:
    xs = [put(mine(2)), put(mine(3, 2))]
    dist.all_reduce_coalesced(xs)
    return xs


def reduce(put: Put) -> Any:
    x = put(mine(4))
    dist.reduce(x, 1, op=ReduceOp.MAX)
    return x if dist.get_rank() == 1 else None


def broadcast(put: Put) -> Any:
    dtype = (
        torch.int32 if put(torch.ones(1)).device.type == "cpu" else torch.int16
    )  # gloo itself has none of the second
    x = put(mine(2, 2, dtype=dtype) if dist.get_rank() == 1 else blank(2, 2, dtype=dtype))
    dist.broadcast(x, 1)
    return x


def all_gather(put: Put) -> Any:
    outs = [put(blank(2)) for _ in range(dist.get_world_size())]
    dist.all_gather(outs, put(mine(2)))
    return outs


def all_gather_into_tensor(put: Put) -> Any:
    out = put(blank(2 * dist.get_world_size(), 3))
    dist.all_gather_into_tensor(out, put(mine(2, 3)))
    return out


def many_gathered(put: Put) -> Any:
    outs = [put(blank(n * dist.get_world_size())) for n in (2, 3)]
    dist.group.WORLD.allgather_into_tensor_coalesced(outs, [put(mine(2)), put(mine(3))]).wait()
    return outs


def lists_gathered(put: Put) -> Any:
    outs = [[put(blank(2)), put(blank(3))] for _ in range(dist.get_world_size())]
    dist.all_gather_coalesced(outs, [put(mine(2)), put(mine(3))])
    return outs


def reduce_scatter(put: Put) -> Any:
    out = put(blank(3))
    dist.reduce_scatter(out, [put(mine(3) + i) for i in range(dist.get_world_size())])
    return out


def reduce_scatter_tensor(put: Put) -> Any:
    out = put(blank(2, 3, dtype=torch.bfloat16))
    dist.reduce_scatter_tensor(out, put(mine(2 * dist.get_world_size(), 3, dtype=torch.bfloat16)))
    return out


def many_scattered(put: Put) -> Any:
    outs = [put(blank(n)) for n in (2, 3)]
    ins = [put(mine(n * dist.get_world_size())) for n in (2, 3)]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outs, ins).wait()
    return outs


def gather(put: Put) -> Any:
    outs = [put(blank(2)) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(put(mine(2)), outs, dst=0)
    return outs


def gather_single(put: Put) -> Any:
    """Which gloo does not do for the host."""
    x = put(mine(2, 3))
    out = put(blank(2 * dist.get_world_size(), 3)) if dist.get_rank() == 1 else None
    if x.device.type == "cpu":
        dist.gather(x, out if out is None else list(out.chunk(dist.get_world_size())), dst=1)
    else:
        dist.gather_single(x, out, dst=1)
    return out


def scatter(put: Put) -> Any:
    out = put(blank(2))
    parts = [put(mine(2) + i) for i in range(dist.get_world_size())] if dist.get_rank() == 1 else None
    dist.scatter(out, parts, src=1)
    return out


def all_to_all(put: Put) -> Any:
    """Rank r sends r + 1 elements to each; gloo does not do it for the host in every release."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    outs = [put(blank(other + 1)) for other in range(ranks)]
    if outs[0].device.type == "cpu":
        return [torch.arange(other + 1) + 1.0 + 3 * other + rank for other in range(ranks)]
    dist.all_to_all(outs, [put(mine(rank + 1) + i) for i in range(ranks)])
    return outs


def all_to_all_of_nothing(put: Put) -> Any:
    outs = [put(blank(0, 2)) for _ in range(dist.get_world_size())]
    if outs[0].device.type != "cpu":
        dist.all_to_all(outs, [put(mine(0, 2)) for _ in outs])
    return outs


def all_to_all_single(put: Put) -> Any:
    out = put(blank(2 * dist.get_world_size(), 3))
    dist.all_to_all_single(out, put(mine(2 * dist.get_world_size(), 3)))
    return out


def uneven(put: Put) -> Any:
    """Rank r sends r + 1 rows to each."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    out = put(blank(sum(range(1, ranks + 1)), 2))
    dist.all_to_all_single(
        out, put(mine((rank + 1) * ranks, 2)), list(range(1, ranks + 1)), [rank + 1] * ranks
    )
    return out


def messages(put: Put) -> Any:
    """Around a ring, both ways at once."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x, out = put(mine(3)), put(blank(3))
    works = [dist.isend(x, (rank + 1) % ranks), dist.irecv(out, (rank - 1) % ranks)]
    for work in works:
        work.wait()
    assert all(work.is_completed() for work in works)
    return out


def from_anybody(put: Put) -> Any:
    if dist.get_rank() == 1:
        dist.send(put(mine(3)), 0)
    if dist.get_rank():
        return None
    out = put(blank(3))
    assert dist.recv(out) == 1
    return out


def with_a_future(put: Put) -> Any:
    x = put(mine(3))
    work = dist.all_reduce(x, async_op=True)
    (result,) = work.get_future().wait()
    assert work.is_completed() or x.device.type == "cpu"  # gloo's own may say so a moment later
    assert work.wait()
    assert result.data_ptr() == x.data_ptr()
    return result


def functional(put: Put) -> Any:
    from torch.distributed import _functional_collectives as functional_collectives

    return functional_collectives.all_reduce(put(mine(3)), "sum", dist.group.WORLD) + 1


def strided(put: Put) -> Any:
    """Only every other column is reduced; the rest keeps what it has."""
    base = put(mine(4, 6))
    if base.device.type == "cpu":
        part = base[:, ::2].contiguous()
        dist.all_reduce(part)
        base[:, ::2] = part
    else:
        dist.all_reduce(base[:, ::2])
    return base


def objects(put: Put) -> Any:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    one = [dist.get_rank()]
    dist.broadcast_object_list(one, 1)
    return torch.tensor([item["rank"] for item in found] + one)


def barrier(put: Put) -> Any:
    dist.group.WORLD.barrier(barrier_options(put)).wait()
    return torch.ones(1)


def barrier_options(put: Put) -> Any:
    options = dist.distributed_c10d.BarrierOptions()
    options.device = put(torch.ones(1)).device
    return options


HALF = (torch.float16, torch.bfloat16)
CASES: dict[str, Callable[[Put], Any]] = {
    **{f"all_reduce {op.name}": reduced(op) for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)},
    **{f"all_reduce {op.name}": reduced(op, torch.int32) for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)},
    **{f"all_reduce {d}": reduced(ReduceOp.SUM, d) for d in (*HALF, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)},
    **{f"all_reduce {d}": summed_by_hand(d) for d in (torch.int16, torch.uint16, torch.complex64, torch.float8_e4m3fn)},
    **{f"average {d}": summed_by_hand(d, ReduceOp.AVG) for d in (torch.float32, torch.bfloat16, torch.int32, torch.complex64)},
    "any of bools": on_bools(ReduceOp.SUM, lambda every: every.any(0)),
    "all of bools": on_bools(ReduceOp.PRODUCT, lambda every: every.all(0)),
    **{
        f.__name__: f
        for f in (
            coalesced, reduce, broadcast, all_gather, all_gather_into_tensor, many_gathered, lists_gathered, reduce_scatter,
            reduce_scatter_tensor, many_scattered, gather, scatter, all_to_all, all_to_all_of_nothing, all_to_all_single, uneven, messages,
            from_anybody, with_a_future, functional, strided, objects, barrier,
        )
    },
    **({"gather_single": gather_single} if hasattr(dist, "gather_single") else {}),
}  # fmt: skip


def on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().to(torch.complex128).tolist() if value.dtype != torch.bool else value.tolist()
    return [on_host(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    device = sys.argv[1]
    torch.fl.set_device(device)
    dist.init_process_group("cpu:gloo,fl:flroute", timeout=timedelta(seconds=30))
    found = {}
    with flroute.enable(device=device, default_device=False, fallback="allow") as session:
        for name, case in CASES.items():
            ours, theirs = on_host(case(lambda t: t.to(device))), on_host(case(lambda t: t))
            found[name] = "" if ours == theirs else f"rank {dist.get_rank()}: {ours}, not {theirs}"
    gathered: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        collectives = {
            d.op: [str(d.route), d.kernel, d.detail] for d in session.decisions if d.op.startswith("c10d::")
        }
        answer = {
            "cases": {name: "".join(each[name] for each in gathered) for name in CASES},
            "collectives": collectives,
        }
        Path(os.environ["FOUND"]).write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
