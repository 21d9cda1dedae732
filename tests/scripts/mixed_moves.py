# A code base of several years: every way to say where a tensor lives, side by side.
import copy

import numpy as np
import torch
import torch.nn as nn

GPU = 0
use_gpu = torch.cuda.is_available() and torch.cuda.device_count() > GPU
torch.manual_seed(2)
np.random.seed(2)


def to_var(x, requires_grad=False):
    if torch.cuda.is_available():
        x = x.cuda()
    return x.requires_grad_(requires_grad)


def to_np(x):
    return x.detach().cpu().numpy()


class EMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model).eval().to("cuda")
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.state_dict().values(), model.state_dict().values()):
            e.copy_(e * self.decay + (1.0 - self.decay) * p.to(e.device))


class PositionalEncoding(nn.Module):
    def __init__(self, dim, length=32):
        super().__init__()
        pos = torch.arange(length, dtype=torch.float, device=torch.device("cuda:0")).unsqueeze(1)
        freq = torch.exp(torch.arange(0, dim, 2).float() * -(np.log(10000.0) / dim)).cuda()
        pe = torch.zeros(length, dim).cuda()
        pe[:, 0::2] = torch.sin(pos * freq)
        pe[:, 1::2] = torch.cos(pos * freq)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)].to(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = PositionalEncoding(8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        noise = torch.ones(x.size(), device=x.get_device() if x.is_cuda else "cpu") * 0.01
        if x.is_cuda:
            noise = noise.type_as(x)
        h = self.conv(self.pos(x + noise).transpose(1, 2)).relu()
        return self.out(h.mean(2))


model = Model().cuda(GPU)
ema = EMA(model)
assert next(model.parameters()).is_cuda and next(model.parameters()).device.type == "cuda"
assert model.out.weight.get_device() == 0 and str(model.out.weight.device) == "cuda:0"

x = to_var(torch.from_numpy(np.random.rand(16, 10, 8).astype(np.float32)))
y = torch.as_tensor(np.random.rand(16, 1), dtype=torch.float32).to(device=GPU, non_blocking=True)
mask = torch.tensor(np.random.rand(16, 1) > 0.2, device="cuda").float()
weights = torch.full((16, 1), 0.5, device=0)
empty = torch.empty(0, device=f"cuda:{GPU}")
with torch.cuda.device(GPU):
    scale = torch.cuda.FloatTensor([2.0])
    index = torch.cuda.LongTensor([3, 1, 2])

optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for _ in range(10):
    optimizer.zero_grad()
    loss = (weights * mask * (model(x) - y) ** 2 * scale).sum() / mask.sum()
    loss.backward()
    optimizer.step()
    ema.update(model)

if use_gpu and x.device == torch.device("cuda", 0):
    picked = torch.index_select(x, 1, index.to("cuda:0"))
history = torch.cat([empty, loss.detach().reshape(1).to("cuda")])
host = model.cpu()
model.load_state_dict({k: v.cuda() for k, v in host.state_dict().items()})

print("history", "%.6f" % history.item())
print("loss %.6f" % to_np(loss))
print("ema %.6f" % to_np(ema.module(x)).mean())
print("picked %.6f" % to_np(picked).sum())
print("host %.6f" % host(x.cpu()).mean().item())
