"""Memory that runs out in the middle of a training step: everything is as it was, and a smaller step works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import flroute

MIB = 1 << 20
WIDTH = 256


@pytest.fixture
def device() -> Iterator[str]:
    torch.fl.empty_cache()
    yield "fl:0"
    torch.fl.set_per_process_memory_fraction(1.0, 0)


def make(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(),
        torch.nn.Linear(WIDTH, 1),
    ).to(device)  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)


class Step:
    """A training step, before a part of which the memory may become as full as it can be."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model, self.optimizer = make(device)
        self.reached = ""

    def __call__(self, batch: torch.Tensor, full: str = "") -> None:
        self.reach("batch", full)
        x = batch.to(self.device)
        self.optimizer.zero_grad()
        self.reach("forward", full)
        loss = self.model(x).square().mean()
        self.reach("backward", full)
        loss.backward()
        self.reach("optimizer", full)
        self.optimizer.step()

    def reach(self, part: str, full: str) -> None:
        self.reached = part
        if part == full:
            torch.fl.empty_cache()
            torch.fl.set_per_process_memory_fraction(0, self.device)

    def state(self) -> list[torch.Tensor]:
        moments = [value for entry in self.optimizer.state.values() for value in entry.values()]
        return [value.detach().cpu().clone() for value in (*self.model.parameters(), *moments)]


@pytest.mark.parametrize("part", ["batch", "forward", "backward"])
@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
def test_state_is_intact_and_a_smaller_step_works(device: str, part: str, session: bool) -> None:
    host, ours = Step("cpu"), Step(device)
    torch.manual_seed(1)
    small, large = torch.randn(64, WIDTH), torch.randn(11_000, WIDTH)

    def train() -> None:
        ours(small)
        before, used = ours.state(), torch.fl.memory_allocated(device)
        with pytest.raises(torch.OutOfMemoryError, match=r"fl:0.*asked for"):
            ours(large, full=part)
        assert ours.reached == part
        torch.fl.set_per_process_memory_fraction(
            40 * MIB / torch.fl.get_device_properties(0).total_memory, device
        )
        ours.optimizer.zero_grad()
        assert all(torch.equal(*pair) for pair in zip(before, ours.state(), strict=True))
        assert torch.fl.memory_allocated(device) <= used, "what the failed step made is gone"
        for _ in range(3):
            ours(small)

    refused = torch.fl.memory_stats(0)["num_ooms"]
    for _ in range(4):
        host(small)
    if session:
        with flroute.enable(device, fallback="error", default_device=False):
            train()
    else:
        train()
    assert torch.fl.memory_stats(0)["num_ooms"] == refused + 1
    torch.fl.reset_accumulated_memory_stats(0)
    assert torch.fl.memory_stats(0)["num_ooms"] == 0
    for here, there in zip(ours.state(), host.state(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-6)
