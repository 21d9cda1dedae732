"""Quantized tensors live on the host: every way onto the device is refused, and the error says what to do."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import flroute

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*quant"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated"),
]

REFERENCE, OPAQUE = flroute.device("reference"), flroute.device("opaque")


def host(dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3, device="cpu"), 0.1, 0, dtype)


def per_channel(dtype: torch.dtype = torch.qint8) -> torch.Tensor:
    ones = torch.ones(4, device="cpu")
    return torch.quantize_per_channel(
        torch.ones(4, 4, device="cpu"), ones, torch.zeros(4, device="cpu"), 0, dtype
    )


def loaded(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, map_location=device)


def on(device: torch.device, *values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu").to(device)


INTO: dict[str, Callable[[torch.device], Any]] = {
    "to": lambda d: host().to(d),
    "to, per channel": lambda d: per_channel().to(d),
    "to, four bits": lambda d: per_channel(torch.quint4x2).to(d),
    "to, qint32": lambda d: host(torch.qint32).to(d),
    "to a dtype": lambda d: on(d, 1).to(torch.qint8),
    "quantize_per_tensor": lambda d: torch.quantize_per_tensor(on(d, 1, 2), 0.1, 0, torch.quint8),
    "quantize_per_tensor, parameters as tensors": lambda d: torch.quantize_per_tensor(on(d, 1), on(d, 1)[0], on(d, 0)[0], torch.quint8),
    "quantize_per_tensor_dynamic": lambda d: torch.quantize_per_tensor_dynamic(on(d, 1), torch.quint8, False),
    "quantize_per_channel": lambda d: torch.quantize_per_channel(on(d, 1, 2), on(d, 1, 1), on(d, 0, 0), 0, torch.quint8),
    "empty": lambda d: torch.empty(3, dtype=torch.quint8, device=d),
    "empty_like": lambda d: torch.empty_like(host(), device=d),
    "zeros_like": lambda d: torch.zeros_like(host(), device=d),
    "new_empty": lambda d: host().new_empty(3, device=d),
    "_empty_affine_quantized": lambda d: torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.quint8, device=d),
    "_make_per_tensor_quantized_tensor": lambda d: torch._make_per_tensor_quantized_tensor(on(d, 1).to(torch.uint8), 0.1, 0),
    "_make_per_channel_quantized_tensor": lambda d: torch._make_per_channel_quantized_tensor(on(d, 1).to(torch.uint8), on(d, 1), on(d, 0), 0),
    "load": lambda d: loaded(host(), d),
    "load, per channel": lambda d: loaded(per_channel(), d),
    "copy_ into a device tensor": lambda d: on(d, 1, 1, 1).copy_(host()),
    "view": lambda d: on(d, 1).to(torch.uint8).view(torch.quint8),
}  # fmt: skip


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize("way", INTO)
def test_every_way_in_is_refused(way: str, device: torch.device, where: str) -> None:
    before = torch.fl.memory_allocated(device)
    with (
        flroute.enable(device, fallback="allow", default_device=False)
        if where == "session"
        else nullcontext(),
        pytest.raises(RuntimeError, match="dequantize"),
    ):
        INTO[way](device)
    assert torch.fl.memory_allocated(device) == before


@pytest.mark.parametrize("where", ["outside", "session"])
def test_what_the_error_advises_works(where: str) -> None:
    with flroute.enable("reference", default_device=False) if where == "session" else nullcontext():
        there = host().dequantize().to("fl")
        assert torch.equal(there.cpu(), host().dequantize())
        assert torch.equal(host().int_repr().to("fl").cpu(), host().int_repr())
        assert torch.equal(
            torch.quantize_per_tensor(there.cpu(), 0.1, 0, torch.quint8).int_repr(), host().int_repr()
        )


@pytest.mark.parametrize("where", ["outside", "session"])
def test_the_hosts_are_left_alone(where: str) -> None:
    with flroute.enable("reference", default_device=False) if where == "session" else nullcontext():
        total = torch.ops.quantized.add(host(), host(), 0.1, 0)
        assert total.dequantize().tolist() == pytest.approx([2.0] * 3)
        host().copy_(torch.zeros(3, device="cpu"))
        assert loaded(host(), torch.device("cpu")).is_quantized
