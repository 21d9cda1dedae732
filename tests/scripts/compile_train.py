import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F

torch.set_float32_matmul_precision("high")
torch.manual_seed(0)

dev = "cuda:0"


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim: int = 16):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.ff = SwiGLU(dim, 32)

    def forward(self, x):
        return x + self.ff(self.norm(x))


model = nn.Sequential(Block(), Block(), nn.Linear(16, 4)).to(dev)
compiled = torch.compile(model, backend="aot_eager")
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

x = torch.randn(32, 16).to(dev)
y = torch.randint(0, 4, (32,)).to(dev)


@torch.compile(backend="eager", fullgraph=True)
def loss_fn(logits, target):
    mask = torch.ones(target.shape[0], device="cuda")
    return (F.cross_entropy(logits, target, reduction="none") * mask).sum() / mask.sum()


for i in range(10):
    opt.zero_grad(set_to_none=True)
    loss = loss_fn(compiled(x), y)
    loss.backward()
    opt.step()

with torch.no_grad():
    difference = (compiled(x) - model(x)).abs().max()
torch.cuda.synchronize(dev)
print(f"loss {loss.item():.6f}")
print(f"difference {difference.item():.4f}")
