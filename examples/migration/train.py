"""Train, and save a checkpoint after each epoch: python train.py --epochs 2 [--resume checkpoint.pt]."""

import argparse

import torch
import torch.nn.functional as F
from data import digit_loaders, mixup
from model import ViT
from torch.cuda.amp import GradScaler, autocast

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--resume", help="checkpoint to go on from")
args = parser.parse_args()

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
train_loader, test_loader = digit_loaders()
model = ViT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = GradScaler()
first_epoch = 0

if args.resume:
    checkpoint = torch.load(args.resume, map_location="cuda:0")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scaler.load_state_dict(checkpoint["scaler"])
    first_epoch = checkpoint["epoch"]


def evaluate():
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device="cuda")
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (model(images.cuda()).argmax(dim=1) == labels.cuda()).sum()
    model.train()
    return correct.item() / len(test_loader.dataset)


for epoch in range(first_epoch, args.epochs):
    total = 0.0
    for images, labels in train_loader:
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        images, partner, share = mixup(images)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            logits = model(images)
            loss = share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(
                logits, labels[partner]
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    print(f"epoch {epoch + 1}: loss {total / len(train_loader):.4f}, accuracy {evaluate():.4f}")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "epoch": epoch + 1,
        },
        "checkpoint.pt",
    )
