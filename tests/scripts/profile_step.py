import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.up = nn.ConvTranspose2d(c, c, 2, stride=2)
        self.out = nn.Conv2d(c + 1, 1, 1)

    def forward(self, x):
        with record_function("down"):
            h = torch.relu(self.down(x))
        with record_function("mid"):
            h = torch.relu(self.mid(h))
        with record_function("up"):
            h = torch.cat([self.up(h), x], dim=1)
        return self.out(h)


def trace_handler(prof):
    table = prof.key_averages().table(sort_by="cuda_time_total", row_limit=5)
    print(table.splitlines()[1][:60])


def main():
    assert torch.cuda.is_available()
    torch.manual_seed(0)
    model = TinyUNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    clean = torch.zeros(8, 1, 16, 16)
    clean[:, :, 4:12, 4:12] = 1.0
    noisy = (clean + 0.3 * torch.randn(8, 1, 16, 16)).cuda()
    clean = clean.cuda()

    def train_step():
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.nvtx.range_push("forward")
        loss = nn.functional.mse_loss(model(noisy), clean)
        torch.cuda.nvtx.range_pop()
        loss.backward()
        optimizer.step()
        return loss

    # the profiler of old
    with torch.autograd.profiler.profile(use_cuda=True) as old:
        train_step()
    print("old profiler saw", len(old.key_averages()), "kinds of events")

    # and of today
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=trace_handler,
        record_shapes=True,
        profile_memory=True,
    ) as prof:
        for _ in range(5):
            loss = train_step()
            prof.step()

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        loss = train_step()
        torch.cuda.synchronize()
    rows = {e.key: e for e in prof.key_averages()}
    total = sum(getattr(e, "cuda_time_total", e.device_time_total) for e in rows.values())
    print("device time is counted:", total >= 0)
    print("regions %d" % sum(name in rows for name in ("down", "mid", "up")))
    print("convolutions %d" % rows["aten::conv2d"].count)
    print("loss %.6f" % loss.item())


if __name__ == "__main__":
    main()
