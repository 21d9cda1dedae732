"""Every dtype PyTorch has on the host lives on the device, bit for bit; quantized ones refuse and say what to do."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flroute
from flroute.device.dtypes import QUANTIZED

REFERENCE, OPAQUE = flroute.device("reference:0"), flroute.device("opaque:0")
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]
HOST = torch.device("cpu")

ALL = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
PLAIN = [dtype for dtype in ALL if dtype not in QUANTIZED]
WHERE = ["outside", "session"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support")
        warnings.filterwarnings("ignore", message=".*quantize")
        yield


def inside(where: str, device: torch.device) -> AbstractContextManager[Any]:
    return (
        nullcontext()
        if where == "outside"
        else flroute.enable(device, fallback="allow", default_device=False)
    )


def filled(
    dtype: torch.dtype, sizes: tuple[int, ...] = (4, 6), strides: tuple[int, ...] = (6, 1)
) -> torch.Tensor:
    """A host tensor with every kind of bit pattern, NaNs with payloads among them."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    raw = (torch.arange(span * dtype.itemsize, device="cpu") * 89 + 7).to(torch.uint8)
    if dtype is torch.bool:
        raw %= 2
    return torch.empty(0, dtype=dtype, device="cpu").set_(raw.untyped_storage(), 0, sizes, strides)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's storage."""
    assert tensor.device.type == "cpu"
    return bytes(torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).tolist())


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # compared with the host's
        return type(error)


def test_all_of_them_are_here() -> None:
    assert {torch.float8_e4m3fn, torch.bits8, torch.int4, torch.uint3, torch.complex32, torch.uint64} <= set(
        PLAIN
    )
    assert {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4} == set(QUANTIZED)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_there_and_back(dtype: torch.dtype, device: torch.device, where: str) -> None:
    host = filled(dtype)
    with inside(where, device):
        there = host.to(device)
        assert (there.dtype, there.shape, there.stride(), there.device) == (
            dtype,
            host.shape,
            host.stride(),
            device,
        )
        assert there.data_ptr() != host.data_ptr()
        back = there.cpu()
        assert (back.dtype, back.stride()) == (dtype, host.stride())
        assert bits(back) == bits(host)
        assert bits(there.to("cpu", copy=True)) == bits(host)
        for other in (REFERENCE, OPAQUE):
            assert bits(there.to(other).cpu()) == bits(host)
        assert bits(host.t().to(device).cpu().t()) == bits(host), "strides are kept on the way"
        target = torch.empty(4, 6, dtype=dtype, device=device)
        assert bits(target.copy_(host).cpu()) == bits(host)
        assert bits(copy.deepcopy(there).cpu()) == bits(host)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_creation_is_the_hosts(dtype: torch.dtype, device: torch.device, where: str) -> None:
    calls: dict[str, Callable[[torch.device], torch.Tensor]] = {
        "empty": lambda d: torch.empty(3, 2, dtype=dtype, device=d),
        "empty_strided": lambda d: torch.empty_strided((3, 2), (1, 3), dtype=dtype, device=d),
        "empty_like": lambda d: torch.empty_like(torch.empty(3, 2, dtype=dtype, device=d).t()),
        "new_empty": lambda d: torch.empty(0, device=d).new_empty((2, 2), dtype=dtype),
        "0-dim": lambda d: torch.empty((), dtype=dtype, device=d),
        "no elements": lambda d: torch.empty(3, 0, 2, dtype=dtype, device=d),
        "channels_last": lambda d: torch.empty(
            1, 2, 3, 4, dtype=dtype, device=d, memory_format=torch.channels_last
        ),
    }
    with inside(where, device):
        for name, call in calls.items():
            expected, made = call(HOST), call(device)
            facts = [
                (t.dtype, t.shape, t.stride(), t.itemsize, t.untyped_storage().nbytes())
                for t in (expected, made)
            ]
            assert facts[0] == facts[1], name
            assert made.device == device
    valued: dict[str, Callable[[torch.device], torch.Tensor]] = {
        "zeros": lambda d: torch.zeros(3, 2, dtype=dtype, device=d),
        "ones": lambda d: torch.ones(3, 2, dtype=dtype, device=d),
        "full": lambda d: torch.full((3,), 1, dtype=dtype, device=d),
        "zero_": lambda d: filled(dtype).to(d).zero_(),
        "tensor": lambda d: torch.tensor([1, 0], dtype=dtype, device=d),
    }
    for name, call in valued.items():
        expected_bits = outcome(lambda call=call: bits(call(HOST)))
        with inside(where, device):
            result = outcome(lambda call=call: bits(call(device).cpu()))
        assert result == expected_bits, name


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "select": lambda x: x[1],
    "expand": lambda x: x[:1].expand(4, 6),
    "view": lambda x: x.view(2, 12),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 2),
    "bytes": lambda x: x.view(torch.uint8),
    "wider": lambda x: x.view(torch.int64),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_views_are_the_hosts(dtype: torch.dtype, device: torch.device, where: str) -> None:
    def facts(view: Callable[[torch.Tensor], torch.Tensor], base: torch.Tensor) -> Any:
        result = outcome(lambda: view(base))
        if not isinstance(result, torch.Tensor):
            return result
        same = result.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        return result.dtype, result.shape, result.stride(), result.storage_offset(), same

    host = filled(dtype)
    expected = {name: facts(view, host) for name, view in VIEWS.items()}
    names = ("transpose", "slice", "select")
    copies = {name: outcome(lambda name=name: bits(VIEWS[name](host).clone())) for name in names}
    with inside(where, device):
        there = host.to(device)
        assert {name: facts(view, there) for name, view in VIEWS.items()} == expected
        assert bits(there.view(torch.uint8).cpu()) == bits(host)
        for name, copied in copies.items():
            if isinstance(copied, bytes):
                assert bits(VIEWS[name](there).clone().cpu()) == copied, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_reading_values_is_the_hosts(dtype: torch.dtype, device: torch.device) -> None:
    host = filled(dtype)
    there = host.to(device)
    for read in (
        lambda t: t[0, 1].item(),
        lambda t: t.tolist(),
        lambda t: repr(t.cpu()),
        lambda t: t.element_size(),
        lambda t: (t.is_floating_point(), t.is_complex(), t.is_signed()),
    ):
        expected, result = outcome(lambda read=read: read(host)), outcome(lambda read=read: read(there))
        assert repr(result) == repr(expected)
    if not isinstance(outcome(lambda: repr(host)), type):
        assert "device='fl" in repr(there)


SIZES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(PLAIN), sizes=SIZES, opaque=st.booleans())
def test_any_strides_survive(
    data: st.DataObject, dtype: torch.dtype, sizes: tuple[int, ...], opaque: bool
) -> None:
    """``.to`` keeps the strides of dense tensors in any order, and makes others dense, as it does on the host."""
    order = data.draw(st.permutations(range(len(sizes))))
    strides, step = [0] * len(sizes), 1
    for dim in order:
        strides[dim] = step
        step *= max(sizes[dim], 1)
    host = torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")
    raw = host.untyped_storage()
    torch.empty(0, dtype=torch.uint8, device="cpu").set_(raw).copy_(
        torch.arange(raw.nbytes()) % (2 if dtype is torch.bool else 251)
    )
    there = host.to(OPAQUE if opaque else REFERENCE)
    assert (there.dtype, there.shape) == (dtype, host.shape)
    expected = outcome(lambda: host.to("cpu", copy=True).stride())
    assert there.stride() == (expected if isinstance(expected, tuple) else host.stride())
    assert bits(there.cpu())[: raw.nbytes()] == bits(host)


CONVERSIBLE = [
    d for d in PLAIN
    if not isinstance(outcome(lambda d=d: torch.zeros(2, device="cpu").to(d).to(torch.float32)), type)
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("source", CONVERSIBLE, ids=str)
def test_conversions_are_the_hosts(source: torch.dtype, device: torch.device) -> None:
    values = torch.tensor([0.0, 1.0, -1.5, 3.25, 100.0, 0.1], device="cpu")
    if not source.is_signed:
        values = values.abs()
    host = values.to(source)
    for target in CONVERSIBLE:
        if source.is_complex and not target.is_complex:
            continue  # warns, drops the imaginary part; covered by the sample databases
        expected = outcome(lambda target=target: bits(host.to(target)))
        there = host.to(device)
        assert outcome(lambda target=target, there=there: bits(there.to(target).cpu())) == expected, target
        moved = outcome(
            lambda target=target: bits(torch.empty(6, dtype=target, device=device).copy_(host).cpu())
        )
        assert moved == expected, target


# Quantized ------------------------------------------------------------------------------------------------------------


def quantized(dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(4.0, device="cpu"), 0.5, 0, dtype)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32, torch.quint4x2], ids=str)
def test_quantized_tensors_are_refused_with_the_remedy(
    dtype: torch.dtype, device: torch.device, where: str
) -> None:
    q = quantized(dtype)
    with inside(where, device):
        for refused in (
            lambda: q.to(device),
            lambda: torch.nn.Parameter(q, requires_grad=False).to(device),
            lambda: torch.empty(3, dtype=dtype, device=device),
            lambda: torch.empty_strided((3,), (1,), dtype=dtype, device=device),
            lambda: torch.quantize_per_tensor(torch.ones(3, device=device), 0.5, 0, dtype),
        ):
            with pytest.raises(flroute.DeviceError, match="dequantize"):
                refused()
        assert q.dequantize().to(device).cpu().tolist() == q.dequantize().tolist(), "the remedy"


@pytest.mark.parametrize("device", DEVICES)
def test_a_refused_quantized_tensor_costs_nothing(device: torch.device) -> None:
    gc.collect()  # what other tests left in cycles must not go in the middle
    before = torch.fl.memory_allocated(device)
    with pytest.raises(flroute.DeviceError):
        torch.empty(3, dtype=torch.qint8, device=device)
    assert torch.fl.memory_allocated(device) == before
