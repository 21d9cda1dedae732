"""Train one small model on many devices: each process has a device and a share of every batch, DDP averages the gradients.

    torchrun --standalone --nproc-per-node=2 examples/train_ddp.py

The collectives are in the session's report like every other op, with the bytes that they moved.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import flroute

STEPS, BATCH = 40, 64


def main() -> None:
    """What every process runs."""
    dist.init_process_group("flroute")
    device = torch.device("fl", int(os.environ["LOCAL_RANK"]) % torch.fl.device_count())
    with flroute.enable(device=device, default_device=False) as session:
        loss = train(device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, loss after {STEPS} steps: {loss:.4f}")
        for decision in session.decisions:
            if decision.op.startswith("c10d::"):
                print(
                    f"{decision.op}: {decision.calls} calls, {decision.bytes_to_host:,} bytes, by {decision.kernel}"
                )
    dist.destroy_process_group()


def train(device: torch.device) -> float:
    """Fit a line through noise; returns the last loss over all processes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same first weights and data everywhere
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 4)
        y = x.sum(1, keepdim=True)
        mine = slice(rank, None, ranks)
        loss = nn.functional.mse_loss(model(x[mine].to(device)), y[mine].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


if __name__ == "__main__":
    main()
