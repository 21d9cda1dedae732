"""Every collective on two ranks against gloo on the host: values, routes, and whether memory is copied."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from launch import HERE, Torchrun

import flroute
from flroute.distributed.collectives import COLLECTIVES
from flroute.torch_compat import all_op_names, collective_ops


@pytest.mark.parametrize(
    ("device", "how"),
    [
        ("fl:0", "on the device's own memory"),
        pytest.param("fl:2", "through a copy on the host", marks=pytest.mark.slow),
    ],
)
def test_every_collective_does_what_gloo_does_on_the_host(torchrun: Torchrun, device: str, how: str) -> None:
    found = torchrun(2, HERE / "every_collective.py", device)
    assert len(found["cases"]) > 40
    assert {name: wrong for name, wrong in found["cases"].items() if wrong} == {}
    assert found["collectives"].keys() == set(collective_ops())
    for op, (route, kernel, detail) in found["collectives"].items():
        assert (route, kernel) == ("copy", f"fl/gloo:{op.removeprefix('c10d::')}")
        reduced_elsewhere = op == "c10d::allreduce_"  # the last of its kinds was a strided one
        moves_nothing = op == "c10d::barrier"
        assert detail == ("" if moves_nothing else how) or reduced_elsewhere, op


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fl:0", "fl:2"])
@pytest.mark.parametrize("ranks", [3, 4])
def test_so_it_does_on_more(torchrun: Torchrun, ranks: int, device: str) -> None:
    """The processes share one device, whose memory the host sees (``fl:0``) or does not (``fl:2``)."""
    found = torchrun(ranks, HERE / "every_collective.py", device)
    assert {name: wrong for name, wrong in found["cases"].items() if wrong} == {}


def test_the_table_has_every_collective_that_pytorch_sends_to_a_device() -> None:
    younger = {"c10d::gather_into_tensor_"} - {*all_op_names()}  # since PyTorch 2.14
    assert set(collective_ops()) == set(COLLECTIVES) - younger


def test_flroute_is_the_backend_of_the_device() -> None:
    flroute.device("reference")
    assert dist.get_default_backend_for_device("fl") == "flroute"
    assert dist.get_default_backend_for_device("fl:1") == "flroute"
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.Backend.backend_capability["flroute"] == ["fl"]


def test_a_process_group_of_an_accelerator_process_gets_it_unasked() -> None:
    flroute.device("reference")
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(2, device="fl:0")
        dist.all_reduce(x)
        assert x.tolist() == [1, 1]
        assert [device.type for device in dist.group.WORLD._device_types] == ["fl"]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.usefixtures("one_rank")
def test_one_element_and_none_go_with_any_stride(size: int) -> None:
    """PyTorch calls them contiguous, and cannot see them as bytes."""
    x = torch.tensor(3.0, device="fl").expand(size)
    assert x.stride() == (0,)
    dist.broadcast(x, 0)
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        y = torch.tensor(3, device="fl", dtype=dtype).expand(size)
        dist.all_reduce(y)
        assert y.tolist() == [3] * size
    assert x.tolist() == [3] * size
