"""Overlap copies and compute with a prefetcher, and time it with events."""
import torch
import torch.nn as nn


class DataPrefetcher:
    """As in many ImageNet scripts: the next batch is copied on a side stream."""

    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.5]).cuda()
        self.std = torch.tensor([0.25]).cuda()
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = None
            self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.float().sub_(self.mean).div_(self.std)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input = self.next_input
        target = self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
        if target is not None:
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return input, target


def batches():
    g = torch.Generator().manual_seed(4)
    for _ in range(6):
        x = torch.rand(32, 20, generator=g)
        yield x.pin_memory(), (x.sum(1) > 10).long()


if __name__ == "__main__":
    torch.manual_seed(4)
    assert torch.cuda.is_available()
    props = torch.cuda.get_device_properties(0)
    print(f"{props.name}, {props.total_memory / 2**30:.0f} GiB, {props.multi_processor_count} cores")

    model = nn.Sequential(nn.Linear(20, 40), nn.ELU(), nn.Linear(40, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
    start_event = torch.cuda.Event(enable_timing=True)
    end_event = torch.cuda.Event(enable_timing=True)

    start_event.record()
    steps = 0
    for epoch in range(3):
        prefetcher = DataPrefetcher(batches())
        input, target = prefetcher.next()
        while input is not None:
            loss = nn.functional.cross_entropy(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            input, target = prefetcher.next()
    end_event.record()
    end_event.synchronize()
    elapsed = start_event.elapsed_time(end_event)
    print(f"{elapsed / steps:.3f} ms per step")
    assert elapsed > 0

    # two streams that meet
    s1, s2 = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    a = torch.arange(64, dtype=torch.float32, device="cuda").reshape(8, 8)
    done = torch.cuda.Event()
    s1.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(s1):
        b = a @ a.t()
        done.record(s1)
    with torch.cuda.stream(s2):
        s2.wait_event(done)
        c = b.sum() / a.numel()
    torch.cuda.synchronize()
    assert done.query()
    print(f"steps {steps}")
    print(f"sum {c.item():.4f}")
    print(f"loss {loss.item():.6f}")
