from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp import GradScaler, autocast

DEVICE = "cuda"


class MLPMixerBlock(nn.Module):
    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens))
        self.norm2 = nn.LayerNorm(dim)
        self.channel_mix = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(MLPMixerBlock(8, 16), MLPMixerBlock(8, 16))
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(dim=1)).squeeze(-1)


def step(model: nn.Module, batch: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    with autocast(device_type=DEVICE, dtype=dtype):
        prediction = model(batch)
        with torch.autocast(device_type="cuda", enabled=False):
            return nn.functional.smooth_l1_loss(prediction.float(), target)


def train(dtype: torch.dtype, steps: int = 12) -> float:
    torch.manual_seed(0)
    model = Mixer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = GradScaler(DEVICE, enabled=dtype is torch.float16)
    inputs = torch.randn(32, 8, 16).to(DEVICE)
    target = inputs.mean(dim=(1, 2)) * 4

    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = step(model, inputs, target, dtype)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert loss.device.type == "cuda"
    return loss.item()


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device found")
    print("bf16 supported:", torch.cuda.is_bf16_supported())
    half = train(torch.float16)
    brain = train(torch.bfloat16)
    torch.cuda.empty_cache()
    print(f"half {half:.5f}")
    print(f"brain {brain:.5f}")


if __name__ == "__main__":
    main()
