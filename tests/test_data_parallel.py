"""``torch.nn.DataParallel`` over two devices of one process computes what the module computes alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm

import flroute

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def model() -> nn.Module:
    flroute.device("reference")
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.mark.parametrize("where", ["cpu", "fl:0"])
def test_outputs_and_gradients_are_those_of_one_device(model: nn.Module, where: str) -> None:
    x = torch.randn(7, 4)
    alone = copy.deepcopy(model)
    expected = alone(x)
    expected.square().sum().backward()
    parallel = nn.DataParallel(model.to("fl:0"), device_ids=[0, 1])
    found = parallel(x.to(where))
    assert found.device == torch.device("fl:0")
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.grad.device == torch.device("fl:0")
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, **CLOSE)


def test_each_device_gets_its_part_and_the_current_device_stays(model: nn.Module) -> None:
    seen = []
    model.register_forward_hook(lambda module, args, result: seen.append((args[0].device, len(args[0]))))
    before = torch.fl.current_device()
    nn.DataParallel(model.to("fl:0"), device_ids=[0, 1])(torch.randn(6, 4))
    assert sorted(seen, key=str) == [(torch.device("fl:0"), 3), (torch.device("fl:1"), 3)]
    assert torch.fl.current_device() == before


def test_an_error_in_a_replica_reaches_the_caller_and_the_current_device_stays(model: nn.Module) -> None:
    def fail(module: nn.Module, args: tuple[torch.Tensor]) -> None:
        if args[0].device.index == 1:
            raise ValueError("replica 1 has enough")

    model.register_forward_pre_hook(fail)
    before = torch.fl.current_device()
    with pytest.raises(ValueError, match="replica 1 has enough"):
        nn.DataParallel(model.to("fl:0"), device_ids=[0, 1])(torch.randn(6, 4))
    assert torch.fl.current_device() == before


def test_parts_of_chosen_sizes_go_there_and_back() -> None:
    flroute.device("reference")
    x = torch.arange(10.0).reshape(5, 2)
    parts = comm.scatter(x, [1, 0], [2, 3])
    assert [(part.device, len(part)) for part in parts] == [
        (torch.device("fl:1"), 2),
        (torch.device("fl:0"), 3),
    ]
    assert comm.gather(parts, destination="cpu").equal(x)
    assert comm.gather(parts, destination=1).device == torch.device("fl:1")
