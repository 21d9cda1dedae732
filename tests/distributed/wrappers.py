"""What each rank runs in ``test_wrappers.py``: what people wrap their modules in, on the device and on the host, the judge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as Ddp

RANKS = 2
Numbers = list[list[float]]


def batch(*shape: int, seed: int = 0) -> torch.Tensor:
    """Differs between ranks."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(10 * dist.get_rank() + seed))


def gradients(module: nn.Module) -> Numbers:
    """Of every parameter, whole."""
    found = []
    for parameter in module.parameters():
        grad = torch.zeros(0) if parameter.grad is None else parameter.grad
        whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
        found.append(whole.to_dense().cpu().flatten().tolist())
    return found


class Halves(nn.Module):
    """Uses one of its halves in each pass; the last of three parts never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor, part: int) -> torch.Tensor:
        return self.parts[part](x)  # type: ignore[no-any-return]


def unused(device: torch.device) -> Numbers:
    """Each rank uses another part: all ranks must learn of it."""
    model = Ddp(Halves().to(device), find_unused_parameters=True)
    for _ in range(2):
        model(batch(4, 3).to(device), dist.get_rank() % 2).square().sum().backward()
    return gradients(model)


def static(device: torch.device) -> Numbers:
    model = Ddp(Halves().to(device), static_graph=True, gradient_as_bucket_view=True)
    for i in range(3):
        model(batch(4, 3, seed=i).to(device), 0).square().sum().backward()
    return gradients(model)


def accumulated(device: torch.device) -> Numbers:
    model = Ddp(Halves().parts[0].to(device))
    with model.no_sync():
        model(batch(4, 3).to(device)).square().sum().backward()
    model(batch(4, 3, seed=1).to(device)).square().sum().backward()
    return gradients(model)


def compressed(device: torch.device) -> Numbers:
    model = Ddp(Halves().parts[0].to(device))
    model.register_comm_hook(None, fp16_compress_hook)
    model(batch(4, 3).to(device)).square().sum().backward()
    return gradients(model)


def sparse(device: torch.device) -> Numbers:
    torch.manual_seed(0)
    model = Ddp(nn.EmbeddingBag(6, 2, sparse=True, mode="sum").to(device))
    rows = torch.tensor([[0, 1], [1, 3 + dist.get_rank()]]).to(device)
    model(rows).square().sum().backward()
    return gradients(model)


def synchronized(device: torch.device) -> Numbers:
    """On the host, which has no such module, one process has the batches of all ranks; loss is a mean over ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3))
    sizes = range(2, 2 + RANKS)
    if device.type == "cpu":
        every = [torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(n)) for n in sizes]
        (model(torch.cat(every)).exp().sum() / RANKS).backward()
    else:
        n = sizes[dist.get_rank()]
        mine = torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(n))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
        wrapped = Ddp(model)  # it reduces for as long as it lives
        wrapped(mine.to(device)).exp().sum().backward()
    running = [b.cpu().flatten().tolist() for b in (model[1].running_mean, model[1].running_var)]
    return gradients(model) + running


def sharded(device: torch.device, policy: OffloadPolicy | None = None) -> Numbers:
    """A model that is on the host when it is sharded."""
    model: nn.Module = Halves().parts[0]
    if device.type == "cpu":
        model = Ddp(model)
    else:
        fully_shard(
            model, mesh=init_device_mesh(device.type, (RANKS,)), offload_policy=policy or OffloadPolicy()
        )
    model(batch(4, 3).to(device)).square().sum().backward()
    if policy is None:
        return gradients(model)
    grads = [p.grad for p in model.parameters()]
    assert all(g is not None and g.to_local().device.type == "cpu" for g in grads if isinstance(g, DTensor))
    return [
        g.to(device).full_tensor().flatten().tolist() if isinstance(g, DTensor) else g.flatten().tolist()
        for g in grads
    ]  # type: ignore[union-attr]


def offloaded(device: torch.device) -> Numbers:
    return sharded(device, CPUOffloadPolicy(pin_memory=True))


CASES: dict[str, Callable[[torch.device], Numbers]] = {
    case.__name__: case
    for case in (unused, static, accumulated, compressed, sparse, synchronized, sharded, offloaded)
}


def main() -> None:
    device = torch.device(sys.argv[1])
    torch.fl.set_device(device)
    dist.init_process_group("cpu:gloo,fl:flroute", timeout=timedelta(seconds=60))
    found = {name: [case(device), case(torch.device("cpu"))] for name, case in CASES.items()}
    if dist.get_rank() == 0:
        Path(os.environ["FOUND"]).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
