"""torchrun --nproc_per_node=2 ddp_nccl.py"""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    return local_rank, dist.get_rank(), dist.get_world_size()


class Toy(Dataset):
    def __init__(self, n=256):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, 10, generator=g)
        self.y = (self.x[:, :3].sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def reduce_mean(value, device):
    t = torch.tensor([value], device=device)
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    return t.item() / dist.get_world_size()


def main():
    local_rank, rank, world_size = setup()
    device = torch.device(f"cuda:{local_rank}")
    torch.manual_seed(0)

    dataset = Toy()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, pin_memory=True)

    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if os.environ.get("SYNC_BN") else model
    model = model.cuda(local_rank)
    model = DDP(model, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss().cuda(local_rank)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x = x.cuda(local_rank, non_blocking=True)
            y = y.cuda(local_rank, non_blocking=True)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean_loss = reduce_mean(loss.item(), device)
        if rank == 0:
            print(f"[epoch {epoch}] mean loss {mean_loss:.4f}")

    dist.barrier()
    weight = model.module[0].weight.detach()
    gathered = [torch.zeros_like(weight) for _ in range(world_size)]
    dist.all_gather(gathered, weight)
    spread = max((g - weight).abs().max().item() for g in gathered)
    if rank == 0:
        torch.cuda.synchronize()
        print(f"loss {mean_loss:.6f}")
        print(f"weight_norm {weight.norm().item():.6f}")
        print(f"spread {spread:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
