"""What torchrun runs in the tests: a small model trained in one of several ways. Rank 0 prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS, BATCH, WIDTH = 5, 8, 8


def make_model() -> nn.Sequential:
    """The same in every process and on every device."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a step."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def share(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """What of a batch is this rank's."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].to(device)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, *, split: bool, device: str
) -> list[float]:
    """Loss of each step, over all samples."""
    losses = []
    for step in steps:
        x, y = (share(t, device) if split else t.to(device) for t in batch(step))
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen = loss.detach().clone()
        if split:
            dist.all_reduce(seen, op=dist.ReduceOp.AVG)
        losses.append(seen.item())
    return losses


def alone() -> list[float]:
    """The losses of one process on the host."""
    model = make_model()
    return train(model, optimizer_of(model), range(STEPS), split=False, device="cpu")


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def ddp(device: str) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(make_model().to(device), bucket_cap_mb=0.0005)
    return {"losses": train(model, optimizer_of(model), range(STEPS), split=True, device=device)}


def fsdp(device: str) -> dict[str, Any]:
    model = sharded()
    found = train(model, optimizer_of(model), range(STEPS), split=True, device=device)
    return {"losses": found, "parameter": type(next(model.parameters())).__name__}


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = make_model().to("fl")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def tensor_parallel(device: str) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("fl", (dist.get_world_size(),))
    model = parallelize_module(
        make_model().to(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-2, foreach=False
    )  # the last layer has plain tensors
    return {"losses": train(model, optimizer, range(STEPS), split=False, device=device)}


def save(device: str) -> dict[str, Any]:
    """Train the first steps, and save."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = sharded()
    optimizer = optimizer_of(model)
    found = train(model, optimizer, range(2), split=True, device=device)
    states = get_state_dict(model, optimizer)
    dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=os.environ["CHECKPOINT"])
    return {"losses": found}


def resume(device: str) -> dict[str, Any]:
    """Load, and train the rest."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = sharded()
    optimizer = optimizer_of(model)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=os.environ["CHECKPOINT"])
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    return {"losses": train(model, optimizer, range(2, STEPS), split=True, device=device)}


def main() -> None:
    how = {f.__name__: f for f in (ddp, fsdp, tensor_parallel, save, resume)}[sys.argv[1]]
    backend, device = sys.argv[2], sys.argv[3]
    import flroute

    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    torch.fl.set_device(device)
    with flroute.enable(device=device, default_device=False, fallback="allow") as session:
        found = how(device)
    collectives = [d for d in session.decisions if d.op.startswith("c10d::")]
    found["collectives"] = {
        d.op: [
            str(d.route),
            d.kernel,
            d.detail,
            sum(o.calls for o in collectives if o.op == d.op),
            d.bytes_to_host,
        ]
        for d in collectives
    }
    if dist.get_rank() == 0:
        Path(os.environ["FOUND"]).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
