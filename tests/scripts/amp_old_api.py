import torch
import torch.nn as nn
import torch.backends.cudnn as cudnn
from torch.cuda.amp import GradScaler, autocast

cudnn.benchmark = True


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), ResBlock(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def accuracy(output, target, topk=(1,)):
    """Computes the accuracy over the k top predictions for the specified values of k"""
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0).mul_(100.0 / target.size(0)) for k in topk]


class AverageMeter(object):
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


if __name__ == "__main__":
    torch.manual_seed(7)
    images = torch.randn(96, 3, 8, 8)
    labels = torch.randint(0, 4, (96,))
    for i in range(4):  # something to find in the noise
        images[labels == i, :, :, i * 2] += 2.0

    model = build().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    scaler = GradScaler(init_scale=1024.0)
    losses = AverageMeter()

    for epoch in range(2):
        for i in range(0, 96, 32):
            x = images[i:i + 32].cuda(non_blocking=True)
            y = labels[i:i + 32].cuda(non_blocking=True)
            optimizer.zero_grad()
            with autocast():
                out = model(x)
                loss = criterion(out, y)
            assert out.dtype == torch.float16, out.dtype
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            losses.update(loss.item(), x.size(0))

    model.eval()
    with torch.no_grad(), torch.cuda.amp.autocast(enabled=True, dtype=torch.float16):
        top1, top2 = accuracy(model(images.cuda()), labels.cuda(), topk=(1, 2))
    print("Acc@1 {:.2f} Acc@2 {:.2f}".format(top1.item(), top2.item()))
    print("scale {:.1f}".format(scaler.get_scale()))
    print("loss {:.5f}".format(losses.avg))
