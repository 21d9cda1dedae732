"""Two vendors in one process: the reference vendor on fl:0 and fl:1, the opaque one on fl:2 and fl:3."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flroute_opaque_vendor.memory import MEMORY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import flroute
from support import decision_of, decisions_of

DEVICES = [torch.device("cpu"), *(torch.device("fl", i) for i in range(4))]
OPAQUE = torch.device("fl:3")

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip

FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "every second": lambda t: t[:, ::2],
    "from the middle": lambda t: t[1:, 1:, 1:],
    "one column": lambda t: t[..., 1],
    "expanded": lambda t: t[:1].expand(4, *t.shape[1:]),
    "empty": lambda t: t[:0],
    "zero dimensions": lambda t: t[0, 0, 0],
    "windows": lambda t: t.flatten().unfold(0, 3, 2),
}


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of a host tensor's elements, in order."""
    t = t.resolve_conj().resolve_neg().contiguous()
    return t.reshape(-1).view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def sample(dtype: torch.dtype) -> torch.Tensor:
    """Any bit pattern there is (for bool, the two that mean something)."""
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(
        0, 2 if dtype == torch.bool else 256, (3 * 4 * 5 * dtype.itemsize,), generator=generator
    )
    return raw.to(torch.uint8).view(dtype).view(3, 4, 5)


def test_devices_are_dealt_out_vendor_by_vendor() -> None:
    assert [d.vendor_device for d in flroute.devices()][:4] == [
        "reference:0",
        "reference:1",
        "opaque:0",
        "opaque:1",
    ]
    assert [vendor.name for vendor in flroute.vendors()][:2] == ["reference", "opaque"]
    assert flroute.device("opaque:1") == OPAQUE
    assert torch.fl.device_count() >= 4


def test_names_and_properties() -> None:
    assert torch.fl.get_device_name(3) == torch.fl.get_device_name("fl:2") == "Opaque One"
    assert torch.fl.get_device_name(0) != "Opaque One"
    with torch.fl.device(2):
        assert torch.fl.get_device_name() == "Opaque One"
    found = torch.fl.get_device_properties(OPAQUE)
    assert (found.name, found.vendor, found.total_memory) == ("Opaque One", "opaque", MEMORY.capacity)
    assert torch.fl.get_device_properties(0).vendor == "reference"


@pytest.mark.parametrize("source", DEVICES, ids=str)
@pytest.mark.parametrize("target", DEVICES, ids=str)
def test_values_survive_a_move_between_any_two_devices(source: torch.device, target: torch.device) -> None:
    for dtype in DTYPES:
        for form in FORMS.values():
            host = form(sample(dtype))
            there = form(sample(dtype).to(source))
            moved = there.to(target)
            assert (moved.device, moved.dtype, moved.shape) == (target, dtype, host.shape)
            if source != target:
                assert moved.stride() == host.clone().stride() or dtype.itemsize == 1
            assert torch.equal(bits(moved.cpu()), bits(host))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(DEVICES), st.sampled_from(DEVICES), st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(FORMS)),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]),
)  # fmt: skip
def test_copy_into_any_form_is_the_hosts(
    source: torch.device,
    target: torch.device,
    form: str,
    other: str,
    dtype: torch.dtype,
    other_dtype: torch.dtype,
) -> None:
    """``copy_`` converts, broadcasts, and leaves what lies between the elements alone."""
    value = torch.arange(60).view(3, 4, 5)
    base, there = (
        torch.full((3, 4, 5), -1).to(other_dtype),
        torch.full((3, 4, 5), -1).to(other_dtype).to(target),
    )
    host_from, from_ = FORMS[form](value.to(dtype)), FORMS[form](value.to(dtype).to(source))
    expected, got = attempt(FORMS[other](base), host_from), attempt(FORMS[other](there), from_)
    assert got == expected
    assert torch.equal(bits(there.cpu()), bits(base))


@pytest.mark.parametrize("target", DEVICES, ids=str)
@pytest.mark.parametrize("source", DEVICES, ids=str)
def test_a_copy_leaves_what_lies_between_the_elements_alone(
    source: torch.device, target: torch.device
) -> None:
    base = torch.full((3, 4), 7.0).to(target)
    base[:, ::2].copy_(torch.ones(3, 2).to(source))
    assert base.tolist() == [[1, 7, 1, 7]] * 3


def attempt(target: torch.Tensor, source: torch.Tensor) -> str | None:
    try:
        target.copy_(source)
    except RuntimeError as error:
        return type(error).__name__
    return None


def test_a_move_within_a_vendor_is_the_vendors_own_copy() -> None:
    x = torch.ones(100).to("fl:2")
    calls, nbytes = MEMORY.on_device.calls, MEMORY.on_device.nbytes
    to_host, from_host = MEMORY.to_host.calls, MEMORY.from_host.calls
    y = x.to("fl:3")
    assert (MEMORY.on_device.calls - calls, MEMORY.on_device.nbytes - nbytes) == (1, 400)
    assert (MEMORY.to_host.calls, MEMORY.from_host.calls) == (to_host, from_host)
    assert torch.equal(y.cpu(), torch.ones(100))


def test_the_vendors_own_counters_equal_what_is_reported() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    x, y = torch.randn(5, 6), torch.randint(3, (5,))
    before = (MEMORY.to_host.nbytes, MEMORY.from_host.nbytes)
    with flroute.enable("opaque:1", fallback="allow", default_device=False) as session:
        module.to("fl")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x.to("fl")), y.to("fl"))
            loss.backward()
            optimizer.step()
            loss.item()
        module.to("fl:0")
        module.cpu()
        strided = torch.ones(4, 4).to("fl:3")[:, ::2]
        strided.copy_(torch.zeros(4, 2))
        strided.cpu()
        torch.nonzero(strided)
        torch.randn(3).to("fl").cauchy_()
    report = session.report()
    assert report.bytes_to_host == MEMORY.to_host.nbytes - before[0] + reference_bytes(
        session, "bytes_to_host"
    )
    assert report.bytes_to_device == MEMORY.from_host.nbytes - before[1] + reference_bytes(
        session, "bytes_to_device"
    )


def reference_bytes(session: flroute.Session, way: str) -> int:
    """Bytes that moved between the host and the reference vendor's devices alone."""
    wheres = ("cpu->fl:0", "fl:0->cpu", "cpu->fl:1", "fl:1->cpu", "fl:0", "fl:1")
    count = sum(getattr(d, way) for d in session.decisions if d.device in wheres)
    if way == "bytes_to_device":  # from one vendor to the other: up into the reference vendor's memory
        count += sum(d.bytes_to_device for d in session.decisions if d.device == "fl:3->fl:0")
    return count


FIVE: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten::add.Tensor": lambda x: torch.add(x, x, alpha=2),
    "aten::mul.Tensor": lambda x: x * 3,
    "aten::mm": lambda x: torch.mm(x, x),
    "aten::relu": torch.relu,
    "aten::fill_.Scalar": lambda x: x.fill_(2),
    "aten::add_.Tensor": lambda x: x.add_(x),
    "aten::mul.out": lambda x: torch.mul(x, x, out=torch.empty_like(x)),
    "aten::relu_": lambda x: x.relu_(),
}


@pytest.mark.parametrize("op", FIVE)
def test_five_kernels_are_native_in_all_their_forms(op: str) -> None:
    host = torch.randn(3, 3)
    x = host.to(OPAQUE)
    with flroute.enable("opaque:1", fallback="error", default_device=False) as session:
        for _ in range(3):
            got = FIVE[op](x)
    for _ in range(3):
        expected = FIVE[op](host)
    torch.testing.assert_close(got.cpu(), expected)
    decision = decision_of(session, op)
    assert (decision.route, decision.calls, decision.bytes_to_host, decision.bytes_to_device) == (
        "native",
        3,
        0,
        0,
    )
    assert decision.kernel is not None
    assert decision.kernel.startswith("opaque/window:")


def test_everything_else_falls_back_through_counted_copies() -> None:
    x = torch.rand(8).to(OPAQUE)
    before = (MEMORY.to_host.nbytes, MEMORY.from_host.nbytes)
    with flroute.enable("opaque:1", fallback="allow", default_device=False) as session:
        y = torch.exp(x)
        x.sqrt_()
    assert (MEMORY.to_host.nbytes - before[0], MEMORY.from_host.nbytes - before[1]) == (64, 64)
    assert y.device == OPAQUE
    assert [(d.op, d.bytes_to_host, d.bytes_to_device, d.reason) for d in session.fallbacks] == [
        ("aten::exp", 32, 32, "no_kernel"), ("aten::sqrt_", 32, 32, "no_kernel"),
    ]  # fmt: skip


def test_memory_is_given_back() -> None:
    gc.collect()  # what earlier tests left in cycles
    before = MEMORY.used(1)
    x = torch.ones(1000).to(OPAQUE)
    view = x[10:].view(-1, 3)
    assert MEMORY.used(1) - before == 4032
    with flroute.enable("opaque:1", fallback="allow"):
        y = torch.relu(view) + torch.exp(view)
    del x
    assert MEMORY.used(1) - before >= 4032 + 3960, "a view keeps the block"
    del view, y
    gc.collect()
    assert MEMORY.used(1) == before


def test_memory_that_is_full_is_an_error_that_says_how_much() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="fl:3"):
        torch.empty(MEMORY.capacity + 1, dtype=torch.uint8, device=OPAQUE)
    assert torch.ones(2, device=OPAQUE).tolist() == [1, 1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
@pytest.mark.parametrize("device", ["fl:1", "fl:3"])
def test_training_is_the_hosts(device: str, in_session: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(10, 6), torch.randint(3, (10,))
    models = {"cpu": Net(), device: Net()}
    models[device].load_state_dict(models["cpu"].state_dict())
    losses: dict[str, list[float]] = {}
    for where, model in models.items():
        model.to(where)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scope = (
            flroute.enable(where, fallback="allow") if in_session and where != "cpu" else torch.enable_grad()
        )
        with scope:
            losses[where] = []
            for _ in range(5):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(where)), y.to(where))
                loss.backward()
                optimizer.step()
                losses[where].append(loss.item())
    torch.testing.assert_close(losses[device], losses["cpu"], rtol=1e-4, atol=1e-5)
    for got, expected in zip(models[device].parameters(), models["cpu"].parameters(), strict=True):
        assert got.device == torch.device(device)
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-5)
    assert losses["cpu"][-1] < losses["cpu"][0]


def test_a_session_on_one_vendor_serves_tensors_of_the_other() -> None:
    a, b = torch.rand(4).to("fl:0"), torch.rand(4).to("fl:3")
    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        torch.exp(a), torch.exp(b), torch.relu(a), torch.relu(b)
    assert {(d.device, str(d.route), d.kernel) for d in decisions_of(session, "aten::exp")} == {
        ("fl:0", "native", "reference/numpy:exp"), ("fl:3", "fallback", None),
    }  # fmt: skip
    assert {d.kernel for d in decisions_of(session, "aten::relu")} == {
        "reference/numpy:relu",
        "opaque/window:relu",
    }


def test_operands_of_two_vendors_are_an_error() -> None:
    a, b = torch.ones(3).to("fl:0"), torch.ones(3).to("fl:2")
    for call in (
        lambda: a + b,
        lambda: b + a,
        lambda: torch.cat([b, a]),
        lambda: b.add_(a),
        lambda: torch.exp(a, out=b),
    ):
        with pytest.raises(flroute.DeviceError, match=r"fl:[02].*fl:[02]"):
            call()
    assert b.tolist() == [1, 1, 1]


def test_gradients_cross_from_one_vendor_to_the_other() -> None:
    leaf = torch.ones(3).to("fl:3").requires_grad_()
    with flroute.enable("reference", fallback="allow", default_device=False):
        ((leaf * 2).to("fl:0") * 3).to("fl:2").sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad.device, leaf.grad.tolist()) == (OPAQUE, [6, 6, 6])
