import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

ACCUM_STEPS = 4
MICRO_BATCH = 8


class SumDataset(Dataset):
    """Sequences of digits; the label is the sum modulo 10."""

    def __init__(self, size=320, length=6):
        generator = torch.Generator()
        generator.manual_seed(99)
        self.sequences = torch.randint(0, 10, (size, length), generator=generator)

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        seq = self.sequences[index]
        return {"input_ids": seq, "labels": seq.sum() % 10}


class Encoder(nn.Module):
    def __init__(self, dim=32, use_checkpoint=True):
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, dim * 2, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(dim, 10)
        self.use_checkpoint = use_checkpoint

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.use_checkpoint and self.training else layer(x)
        return self.head(x.mean(dim=1))


def move_to_cuda(batch):
    if isinstance(batch, dict):
        return {key: move_to_cuda(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_to_cuda(value) for value in batch)
    return batch.cuda(non_blocking=True) if torch.is_tensor(batch) else batch


def main():
    torch.manual_seed(0)
    loader = DataLoader(SumDataset(), batch_size=MICRO_BATCH, shuffle=False, num_workers=0, pin_memory=True,
                        drop_last=True)
    model = Encoder().cuda()
    no_decay = ["bias", "norm"]
    params = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(params, lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))

    torch.cuda.reset_peak_memory_stats()
    model.train()
    optimizer.zero_grad()
    total, updates = torch.zeros((), device="cuda"), 0
    for step, batch in enumerate(loader):
        batch = move_to_cuda(batch)
        loss = nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
        (loss / ACCUM_STEPS).backward()
        total += loss.detach()
        if (step + 1) % ACCUM_STEPS == 0:
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            updates += 1

    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"peak memory: {peak:.1f} MiB, reserved {torch.cuda.memory_reserved() / 2**20:.1f} MiB")
    print(f"updates {updates}")
    print(f"mean_loss {(total / len(loader)).item():.6f}")
    print(f"grad_norm {grad_norm.item():.5f}")


if __name__ == "__main__":
    main()
