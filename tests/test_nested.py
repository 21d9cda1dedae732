"""Nested tensors: the jagged layout works on the device, the strided one is refused in words before anything is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import flroute

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

REFERENCE, OPAQUE = flroute.device("reference"), flroute.device("opaque")
HOST = torch.device("cpu")
DEVICES = pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
WHERE = pytest.mark.parametrize("where", ["outside", "session"])
nested = torch.nested


def session(where: str, device: torch.device, **settings: Any) -> Any:
    settings = {"fallback": "allow", "default_device": False, **settings}
    return flroute.enable(device, **settings) if where == "session" else nullcontext()


def rows(device: torch.device) -> list[torch.Tensor]:
    made = torch.linspace(-1, 1, 20, device="cpu").reshape(5, 4)
    return [made[:2].to(device), made[2:].to(device)]


def jagged(device: torch.device) -> torch.Tensor:
    return nested.as_nested_tensor(rows(device), layout=torch.jagged)


def weights(device: torch.device) -> torch.Tensor:
    return torch.linspace(0, 1, 12, device="cpu").reshape(3, 4).to(device)


OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda j: j.relu(),
    "add and sin": lambda j: j + j.sin(),
    "mul": lambda j: j * 2,
    "linear": lambda j: torch.nn.functional.linear(j, weights(j.device)),
    "sum of a row": lambda j: j.sum(dim=-1),
    "mean over the jagged dim": lambda j: j.mean(dim=1),
    "softmax": lambda j: j.softmax(-1),
    "softmax over the jagged dim": lambda j: j.softmax(1),
    "layer_norm": lambda j: torch.nn.functional.layer_norm(j, (4,)),
    "to_padded_tensor": lambda j: nested.to_padded_tensor(j, 0.5),
    "unbind": lambda j: j.unbind()[1],
    "index": lambda j: j[0],
    "clone": lambda j: j.clone(),
    "detach": lambda j: j.detach(),
    "deepcopy": lambda j: copy.deepcopy(j.detach()),
    "double": lambda j: j.double(),
    "unflatten and transpose": lambda j: j.unflatten(-1, (2, 2)).transpose(1, 2),
    "values": lambda j: j.values(),
    "offsets": lambda j: j.offsets(),
    "to the host and back": lambda j: j.cpu().to(j.device),
}


def same(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    assert actual.device == device
    assert actual.is_nested == expected.is_nested
    if not expected.is_nested:
        torch.testing.assert_close(actual.cpu(), expected)
        return
    assert actual.layout is torch.jagged
    for mine, theirs in zip(actual.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


@WHERE
@DEVICES
@pytest.mark.parametrize("op", OPS)
def test_jagged_ops_are_the_hosts(op: str, device: torch.device, where: str) -> None:
    expected = OPS[op](jagged(HOST))
    with session(where, device):
        same(OPS[op](jagged(device)), expected, device)


@WHERE
@DEVICES
def test_jagged_tensors_are_made(device: torch.device, where: str) -> None:
    expected = jagged(HOST)
    with session(where, device):
        same(nested.nested_tensor(rows(HOST), layout=torch.jagged, device=device), expected, device)
        same(jagged(HOST).to(device), expected, device)
        offsets = torch.tensor([0, 2, 5], device="cpu").to(device)
        same(nested.nested_tensor_from_jagged(torch.cat(rows(device)), offsets), expected, device)
        dense = torch.arange(40.0, device="cpu").reshape(2, 5, 4)
        lengths = [torch.tensor([0, 1], device="cpu"), torch.tensor([2, 3], device="cpu")]
        narrow = nested.narrow(dense.to(device), 1, *[t.to(device) for t in lengths], layout=torch.jagged)
        same(narrow, nested.narrow(dense, 1, *lengths, layout=torch.jagged), device)
        mask = torch.tensor([[True, False, True], [False, True, False]], device="cpu")
        picked = nested.masked_select(dense[:, :3, 0].to(device), mask.to(device))
        same(picked, nested.masked_select(dense[:, :3, 0], mask), device)


@WHERE
@DEVICES
def test_jagged_backward(device: torch.device, where: str) -> None:
    def grads(target: torch.device) -> list[torch.Tensor]:
        leaves = [row.requires_grad_() for row in rows(target)]
        weight = weights(target).requires_grad_()
        made = nested.as_nested_tensor(leaves, layout=torch.jagged)
        torch.nn.functional.linear(made.sin(), weight).values().pow(2).sum().backward()
        return [*(leaf.grad.cpu() for leaf in leaves), weight.grad.cpu()]

    expected = grads(HOST)
    with session(where, device):
        torch.testing.assert_close(grads(device), expected)


def test_elementwise_jagged_ops_are_native() -> None:
    with session("session", REFERENCE, fallback="error") as running:
        (jagged(REFERENCE).relu() * 2).sum(-1)
    assert running.fallbacks == []


INTO_STRIDED: dict[str, Callable[[torch.device], Any]] = {
    "nested_tensor of host tensors": lambda d: nested.nested_tensor(rows(HOST), device=d).relu(),
    "one that wants a gradient": lambda d: nested.nested_tensor(rows(HOST), device=d).requires_grad_().relu(),
    "nested_tensor of device tensors": lambda d: nested.nested_tensor(rows(d)),
    "as_nested_tensor": lambda d: nested.as_nested_tensor(rows(d)),
    "to": lambda d: nested.nested_tensor(rows(HOST), device="cpu").to(d),
    "to with a dtype": lambda d: nested.nested_tensor(rows(HOST), device="cpu").to(d, torch.float64),
    "attention over jagged ones": lambda d: attend(jagged(d)),
}


def attend(j: torch.Tensor) -> torch.Tensor:
    heads = j.unflatten(-1, (2, 2)).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


@WHERE
@DEVICES
@pytest.mark.parametrize("way", INTO_STRIDED)
def test_the_strided_layout_is_refused(way: str, device: torch.device, where: str) -> None:
    with (
        session(where, device),
        pytest.raises(
            flroute.DeviceError, match=r"nested tensors of the strided layout .* layout=torch.jagged"
        ),
    ):
        INTO_STRIDED[way](device)


@WHERE
def test_the_hosts_are_left_alone(where: str) -> None:
    with session(where, REFERENCE):
        host = nested.nested_tensor(rows(HOST), device="cpu", requires_grad=True)
        host.to(torch.float64).relu().unbind()[0].sum().backward()
        assert host.grad.is_nested
        assert host.to("cpu") is host
