"""Memory that is shared, is not to be shared, or is not there: arguments, results, zeros without memory, lazy bits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.device import storage_memory
from flroute.vendor import Kernel
from support import COPY, Vendors, named, throw_away_vendors

REFERENCE, SECOND, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:0"),
)
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]
HOST = torch.device("cpu")

vendors = pytest.fixture(throw_away_vendors)


def inside(where: str, device: torch.device) -> AbstractContextManager[Any]:
    """``copying`` is the session in which the host gets copies of host-visible memory, too."""
    if where == "outside" or device.type == "cpu":  # what the device is compared with runs without a session
        return nullcontext()
    return flroute.enable(device, fallback="allow", fast_fallback=where != "copying", default_device=False)


WHERE = ("outside", "session", "copying")


# Two arguments over one storage -----------------------------------------------------------------------------------------


def index(like: torch.Tensor, *numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cpu").to(like.device)


OVERLAPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add out": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "add in place": lambda x: x[1:].add_(x[:-1]),
    "hypot out": lambda x: torch.hypot(x[:-1], x[:-1], out=x[1:]),
    "hypot in place": lambda x: x[1:].hypot_(x[:-1]),
    "copy_": lambda x: x[1:].copy_(x[:-1]),
    "copy_ backwards": lambda x: x[:-1].copy_(x[1:]),
    "neg out": lambda x: torch.neg(x[1:], out=x[:-1]),
    "where out": lambda x: torch.where(x[:-1] > 2, x[:-1], x[:-1], out=x[1:]),
    "cat out": lambda x: torch.cat([x[:3], x[3:6]], out=x[1:7]),
    "cat out of an input": lambda x: torch.cat([x[:4], x[4:]], out=x),
    "cat out of nothing": lambda x: torch.cat([x[:0], x[4:]], out=x[:4]),
    "gather out": lambda x: torch.gather(x[:4], 0, index(x, 3, 2, 1, 0), out=x[:4]),
    "gather out beside": lambda x: torch.gather(x[:4], 0, index(x, 3, 2, 1, 0), out=x[4:]),
    "index_select out": lambda x: torch.index_select(x[:4], 0, index(x, 3, 2, 1), out=x[1:4]),
    "index_add": lambda x: x[:4].index_add_(0, index(x, 0, 1), x[2:4]),
    "index_add of itself": lambda x: x.index_add_(0, index(x, *range(8)), x),
    "scatter": lambda x: x[:4].scatter_(0, index(x, 0, 1), x[3:5]),
    "cumsum out": lambda x: torch.cumsum(x[:4], 0, out=x[1:5]),
    "cumsum in place": lambda x: torch.cumsum(x, 0, out=x),
    "addmm out": lambda x: torch.addmm(
        x[:4].view(2, 2), x[4:].view(2, 2), x[4:].view(2, 2), out=x[1:5].view(2, 2)
    ),
    "addmm into its addend": lambda x: x[:4].view(2, 2).addmm_(x[4:].view(2, 2), x[4:].view(2, 2)),
    "dense, but not row-major": lambda x: torch.add(x[:6].view(2, 3).t(), 1, out=x[2:].view(2, 3).t()),
    "dense in two orders": lambda x: x[:4].view(2, 2).add_(x[:4].view(2, 2).t()),
    "masked_fill through expand": lambda x: x[:1].expand(4).masked_fill_(x[:4] > 1, 7),
    "a list with an expand": lambda x: [torch._foreach_mul_([x[:1].expand(4)], 2), x][1],
    "a list that overlaps": lambda x: [torch._foreach_add_([x[:4], x[2:6]], 1), x][1],
    "a list with one tensor twice": lambda x: [torch._foreach_mul_([x, x], 2), x][1],
    "a list with the same list": lambda x: [torch._foreach_add_([x[:4], x[4:]], [x[:4], x[4:]]), x][1],
    "an empty expand": lambda x: x[:0].view(1, 0).expand(4, 0).add_(1),
    "in place through expand": lambda x: x[:1].expand(4).mul_(2),
    "index_put of itself": lambda x: x.index_put_((torch.tensor([1, 3]),), x[6:8]),
    "out through expand": lambda x: torch.mul(x[:4], 2, out=x[5:6].expand(4)),
    "out twice": lambda x: torch.aminmax(x.view(2, 4), dim=0, out=(x.new_empty(4), x.new_empty(1).expand(4))),
}
"""Refused by the host, with few exceptions: whatever it does, the device does too.

Not here: what the host neither refuses nor defines, such as ``mm`` into its own factor, which differs between host CPUs.
"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", OVERLAPS)
def test_partial_overlap_is_treated_as_on_the_host(name: str, where: str, device: torch.device) -> None:
    seen = []
    for target in (HOST, device):
        x = torch.arange(8.0).to(target)
        with inside(where, target):
            try:
                result = OVERLAPS[name](x)
            except Exception as error:  # compared with the host's
                seen.append((type(error), x.tolist()))
            else:
                results = result if isinstance(result, tuple) else (result,)
                seen.append(([r.tolist() for r in results], x.tolist()))
    assert seen[0] == seen[1]


def add_rows(x: Any, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Any:
    result = x.copy()
    np.add.at(result, index, source)
    return result


def running_sum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    return np.cumsum(x, dim)


@pytest.mark.parametrize("name", ["index_add", "index_add of itself", "cumsum out", "cumsum in place"])
def test_a_kernel_of_any_vendor_keeps_to_the_hosts_rules(name: str, vendors: Vendors) -> None:
    made = vendors(Kernel("aten::index_add", add_rows), Kernel("aten::cumsum", running_sum), COPY)
    seen = []
    with flroute.enable(made.name, fallback="error", default_device=False):
        for target in (HOST, made.device):
            x = torch.arange(8.0, device="cpu").to(target)
            try:
                OVERLAPS[name](x)
            except RuntimeError as error:
                seen.append(str(error))
            else:
                seen.append(str(x.tolist()))
    assert seen[0] == seen[1]


SHARED: dict[str, Callable[[torch.Tensor], Any]] = {
    "out is the input": lambda x: torch.add(x, x, out=x),
    "in place with itself": lambda x: x.mul_(x),
    "fallback in place with itself": lambda x: x.hypot_(x),
    "in place with a view of itself": lambda x: x.view(8).add_(x),
    "copy_ of itself": lambda x: x.copy_(x),
    "two views of one storage as inputs": lambda x: torch.hypot(x[:4], x[4:]),
    "an input that overlaps itself": lambda x: torch.add(x.unfold(0, 3, 1), x[:1].expand(6, 3)),
    "fallback of an input that overlaps itself": lambda x: torch.hypot(x.unfold(0, 3, 1), x[:1].expand(6, 3)),
    "disjoint halves": lambda x: x[::2].add_(x[1::2]),
    "fallback of disjoint halves": lambda x: x[::2].hypot_(x[1::2]),
    "disjoint halves, copied": lambda x: x[1::2].copy_(x[::2]),
    "out into the other half": lambda x: torch.hypot(x[::2], x[::2], out=x[1::2]),
    "fill_ through expand": lambda x: x[:1].expand(4).fill_(7),
    "zero_ through expand": lambda x: x[:1].expand(4).zero_(),
    "a list that shares a storage": lambda x: [torch._foreach_add_([x[:4], x[4:]], 1), x][1],
    "a reversed copy": lambda x: x.copy_(x.flip(0)),
    "an out that is a transposed input": lambda x: torch.hypot(
        x.view(2, 4).t(), x.view(2, 4).t(), out=x.view(2, 4).t()
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", SHARED)
def test_sharing_that_is_allowed(name: str, where: str, device: torch.device) -> None:
    seen = []
    for target in (HOST, device):
        x = torch.arange(8.0).to(target)
        with inside(where, target):
            result = SHARED[name](x)
            seen.append((x.tolist(), result.tolist(), x._version))
    torch.testing.assert_close(seen[1][:2], seen[0][:2])
    assert seen[1][2] == seen[0][2]


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_returns_a_view_of_an_argument(device: torch.device) -> None:
    """An op that is no view by its schema, but returns an argument or a view of it."""
    with inside("session", device):
        for call in (
            lambda x: torch.ops.aten.contiguous(x),
            lambda x: x.reshape(-1),
            lambda x: x.to(torch.float32),
            lambda x: x.float(),
            torch.real,
            torch.resolve_conj,
            torch.resolve_neg,
            torch.positive,
            torch.atleast_2d,
            lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
            lambda x: x.expand_as(x),
            lambda x: torch.broadcast_tensors(x, x)[0],
        ):
            x = torch.ones(2, 3).to(device)
            y = call(x)
            assert y.data_ptr() == x.data_ptr()
            y.mul_(2)
            assert x.tolist() == [[2.0] * 3] * 2


def test_a_write_into_the_gaps_survives_a_fallback() -> None:
    """While the host works on every other element, somebody else writes to the elements between."""
    for device, where in ((REFERENCE, "session"), (REFERENCE, "copying"), (OPAQUE, "session")):
        base = torch.zeros(6, device=device)

        def slow(x: torch.Tensor, base: torch.Tensor = base) -> None:
            x.add_(1)
            base[1].fill_(7)

        definition = torch.library.Library("flroute_test", "DEF")
        try:
            definition.define("slow_(Tensor(a!) x) -> ()")
            definition.impl("slow_", slow, "CPU")
            with inside(where, device):
                torch.ops.flroute_test.slow_(base[::2])
        finally:
            definition._destroy()
        assert base.tolist() == [1.0, 7.0, 1.0, 0.0, 1.0, 0.0], (device, where)


# Kernels that do not return new arrays ------------------------------------------------------------------------------------

ODD_RESULTS: dict[str, Callable[[Any], Any]] = {
    "its input": lambda x: x,
    "a view of its input": lambda x: x.reshape(x.shape),
    "ascontiguousarray of its input": np.ascontiguousarray,
    "a reversed view of its input": lambda x: x[::-1],
    "a transposed copy": lambda x: np.ascontiguousarray(x.T).T,
    "a broadcast number": lambda x: np.broadcast_to(np.float32(3), x.shape),
    "a broadcast view of its input": lambda x: np.broadcast_to(x[:1], x.shape),
    "a part of a larger array": lambda x: np.full((2 * len(x), *x.shape[1:]), 5, np.float32)[::2],
    "a reversed array": lambda x: (x * 2)[::-1],
    "a read-only array": lambda x: _read_only(x * 2),
    "memory of a bytes object": lambda x: np.frombuffer((x * 2).tobytes(), np.float32).reshape(x.shape),
    "memory of a tensor": lambda x: torch.from_numpy(x * 2).numpy(),
    "an array subclass": lambda x: (x * 2).view(np.recarray),
    "a masked array": lambda x: np.ma.array(x * 2),
}


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", ODD_RESULTS)
def test_a_result_is_memory_of_its_own(name: str, vendors: Vendors) -> None:
    function = ODD_RESULTS[name]
    device = vendors(Kernel("aten::sin", named("odd", lambda x: function(x))), COPY).device
    with flroute.enable(device, fallback="allow", default_device=False) as session:
        for shape in ((6,), (3, 2), (1,), (2, 3, 2), (0, 2)):
            for _ in range(3):  # the first call takes the general path, the others the hot one
                check_result(function, torch.arange(float(np.prod(shape))).reshape(shape), device)
    sines = [d for d in session.decisions if d.op == "aten::sin"]
    assert [(d.route, d.calls, len(d.shapes)) for d in sines] == [("native", 3, 1)] * 5


def check_result(function: Callable[[Any], Any], host: torch.Tensor, device: torch.device) -> None:
    x, expected = host.to(device), np.array(function(host.numpy().copy()))
    y = torch.sin(x)
    assert y.stride() == host.stride()
    np.testing.assert_array_equal(y.cpu().numpy(), expected)
    assert not x.numel() or y.data_ptr() != x.data_ptr()
    y.add_(1)
    assert torch.equal(x.cpu(), host), "the input was written through the result"
    y.sub_(1)
    del x
    reused = [torch.full_like(host, -1.0, device=device) for _ in range(20)]  # takes memory that was freed
    np.testing.assert_array_equal(y.cpu().numpy(), expected, "the result's memory was freed")
    del reused


@pytest.mark.parametrize("name", ["its input", "a view of its input", "a reversed view of its input"])
def test_in_place_and_out_with_a_kernel_that_returns_its_input(name: str, vendors: Vendors) -> None:
    function = ODD_RESULTS[name]
    made = vendors(Kernel("aten::sin", named("odd", lambda x: function(x))), COPY)
    expected = function(np.arange(6.0, dtype=np.float32)).tolist()
    x, out = torch.arange(6.0).to(made.device), torch.zeros(6, device=made.device)
    torch.sin(x, out=out)
    assert out.tolist() == expected
    assert x.sin_().tolist() == expected
    out.zero_()
    assert x.tolist() == expected


def test_one_array_returned_twice_is_two_tensors(vendors: Vendors) -> None:
    def both(x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
        low = x.min(axis=dim, keepdims=keepdim)
        return low, low

    made = vendors(Kernel("aten::aminmax", both), COPY)
    low, high = torch.aminmax(torch.ones(3, 2).to(made.device), dim=0)
    low.zero_()
    assert high.tolist() == [1.0, 1.0]


# Zeros without memory, lazy bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_zeros_without_memory_get_some(where: str, device: torch.device) -> None:
    """PyTorch's "efficient zeros" own no memory: a kernel would read from address 0, a view from just above it."""
    with inside(where, device):
        zero = torch._efficientzerotensor((2, 3), device=device)
        assert zero.data_ptr() != 0
        one = torch.ones(2, 3, device=device)
        assert zero[1, 1:].tolist() == [0.0, 0.0]
        assert (one + zero).tolist() == one.tolist()
        assert torch.hypot(one, zero.t().t()).tolist() == one.tolist()
        assert zero.add_(1).sum().item() == 6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize(
    "function",
    [
        torch.sgn,
        lambda x: x.sgn()[1:] * 2,
        lambda x: x.sgn().t() + x.t(),
        lambda x: torch.mm(x.sgn(), x.t()),
        torch.sign,
    ],
    ids=["sgn", "slice", "sum", "mm", "sign"],
)
def test_gradients_that_are_zero(function: Callable[..., Any], where: str, device: torch.device) -> None:
    grads = []
    for target in (HOST, device):
        x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]]).to(target).requires_grad_()
        with inside(where, target):
            function(x).sum().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)


LAZY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mm": lambda z, w: torch.mm(z.conj(), w),
    "mm of two": lambda z, w: torch.mm(z.mH, w.conj()),
    "matmul": lambda z, w: z.conj() @ w.t().conj(),
    "add": lambda z, w: z.conj() + w,
    "mul": lambda z, w: w * z.conj(),
    "sum": lambda z, w: z.conj().sum(),
    "abs": lambda z, w: z.conj().abs(),
    "hypot of parts": lambda z, w: torch.hypot(z.conj().imag, w.real),
    "relu of a negative view": lambda z, w: torch.relu(z.conj().imag),
    "mm of a negative view": lambda z, w: torch.mm(z.conj().imag, w.real),
    "clone": lambda z, w: z.conj().clone(),
    "copy_ from": lambda z, w: w.copy_(z.conj()),
    "copy_ into": lambda z, w: [z.conj().copy_(w), z][1],
    "copy_ between two": lambda z, w: [z.conj().copy_(w.conj()), z][1],
    "in place": lambda z, w: [z.conj().add_(w), z][1],
    "in place on a negative view": lambda z, w: [z.conj().imag.add_(w.real), z][1],
    "fallback in place on a negative view": lambda z, w: [z.conj().imag.hypot_(w.real), z][1],
    "fill_": lambda z, w: [z.conj().fill_(2 + 1j), z][1],
    "assignment": lambda z, w: [z.conj().__setitem__(0, 3j), z][1],
    "zero_": lambda z, w: [z.conj()[0].zero_(), z][1],
    "out": lambda z, w: [torch.add(w, w, out=z.conj()), z][1],
    "cat": lambda z, w: torch.cat([z.conj(), w]),
    "stack": lambda z, w: torch.stack([z.conj(), w.conj()]),
    "index": lambda z, w: z.conj()[torch.tensor([1, 0])],
    "where": lambda z, w: torch.where(w.real > 0, z.conj(), w),
    "item": lambda z, w: torch.tensor(z.conj()[0, 1].item()),
    "to host": lambda z, w: z.conj().to("cpu"),
    "resolve": lambda z, w: z.conj().resolve_conj(),
    "fft": lambda z, w: torch.fft.fft(z.conj()),
    "hfft2": lambda z, w: torch.fft.hfft2(z),
    "equal": lambda z, w: torch.tensor(torch.equal(z.conj(), z)),
    "einsum": lambda z, w: torch.einsum("ij,jk->ik", z.conj(), w),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session", "inference"])
@pytest.mark.parametrize("name", LAZY)
def test_lazy_bits(name: str, where: str, device: torch.device) -> None:
    numbers = torch.complex(torch.arange(4.0) - 1, 2 - torch.arange(4.0)).reshape(2, 2)
    seen = []
    for target in (HOST, device):
        with (
            inside("outside" if where == "outside" else "session", device),
            torch.inference_mode(where == "inference"),
        ):
            z, w = numbers.clone().to(target), (numbers + (1 + 2j)).to(target)
            seen.append(LAZY[name](z, w).cpu().resolve_conj().resolve_neg())
    torch.testing.assert_close(seen[1], seen[0])


# resize_ and set_ ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_resize_that_fits_keeps_the_storage(where: str, device: torch.device) -> None:
    with inside(where, device):
        base = torch.arange(12.0).to(device)
        view = base[2:4]
        address = view.data_ptr()
        assert view.resize_(2, 3) is view
        assert (view.data_ptr(), view.shape, view.stride(), view.storage_offset()) == (
            address,
            (2, 3),
            (3, 1),
            2,
        )
        assert view.tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]
        view.fill_(-1)
        assert base.tolist() == [0.0, 1.0, *[-1.0] * 6, 8.0, 9.0, 10.0, 11.0]
        assert base.resize_(3).tolist() == [0.0, 1.0, -1.0]
        assert base.resize_(12).tolist()[-1] == 11.0, "shrinking must not drop memory"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_resize_that_grows_alone_keeps_the_values(where: str, device: torch.device) -> None:
    with inside(where, device):
        x = torch.arange(4.0).to(device)
        x.resize_(3, 4)
        assert x.shape == (3, 4)
        assert x[0].tolist() == [0.0, 1.0, 2.0, 3.0]
        x.fill_(2)
        assert x.sum().item() == 24
        offset = torch.empty(0, device=device).set_(torch.arange(6.0).to(device).untyped_storage(), 4, (2,))
        offset.resize_(5)
        assert (offset.storage_offset(), offset[:2].tolist()) == (4, [4.0, 5.0])
        empty = torch.empty(0, device=device).resize_(2, 2)
        assert empty.fill_(1).sum().item() == 4
        last = torch.empty(0, device=device).resize_(1, 2, 3, 4, memory_format=torch.channels_last)
        assert last.is_contiguous(memory_format=torch.channels_last)


GROWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "resize_": lambda x: x.resize_(9),
    "resize_ of a view": lambda x: x[2:].resize_(3, 4),
    "resize_as_": lambda x: x.resize_as_(torch.empty(3, 5, device=x.device)),
    "native out": lambda x: torch.cat([x.clone(), x.clone()], out=x[1:2]),
    "fallback out": lambda x: torch.hypot(x.clone().repeat(3), x.repeat(3), out=x[:1]),
    "an out whose size depends on the data": lambda x: torch.masked_select(
        x.repeat(3), x.repeat(3) > 0, out=x[2:]
    ),
    "an empty storage": lambda x: x.set_().resize_(4).copy_(x.new_ones(4)),
    "twice": lambda x: x.resize_(9).resize_(20),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", GROWN)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_every_alias_sees_a_storage_grow(name: str, where: str, device: torch.device) -> None:
    gc.collect()
    before = torch.fl.memory_allocated(device)
    seen = []
    for target in (HOST, device):
        x = torch.arange(4.0).to(target)
        rows, loss = x.view(2, 2), (x.detach().requires_grad_() * 2).sum()
        with inside(where, target):
            GROWN[name](x)
        first = x.as_strided((4,), (1,))
        first[:3].mul_(-1)
        rows[1].add_(10)
        seen.append(
            (first.tolist(), tuple(x.shape), rows.tolist(), x.untyped_storage().nbytes(), loss.item(),
             x.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr())
        )  # fmt: skip
        del x, rows, first, loss
    assert seen[0] == seen[1]
    gc.collect()
    assert torch.fl.memory_allocated(device) == before


def test_resize_that_grows_while_shared_is_refused_where_storages_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_memory, "_memory_in_storage", lambda: None)
    x = torch.arange(4.0).to(REFERENCE)
    view = x[1:]
    with pytest.raises(flroute.DeviceError, match=r"share.*storage"):
        x.resize_(9)
    assert (x.tolist(), view.tolist()) == ([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert x.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    del view
    assert x.resize_(9)[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_resize_counts_memory(where: str, device: torch.device) -> None:
    with inside(where, device):
        gc.collect()
        before = torch.fl.memory_allocated(device)
        x = torch.zeros(8, device=device)
        x.resize_(16)
        assert torch.fl.memory_allocated(device) == before + 64
        x.resize_(2)
        assert torch.fl.memory_allocated(device) == before + 64
        del x
        assert torch.fl.memory_allocated(device) == before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_set(where: str, device: torch.device) -> None:
    with inside(where, device):
        a, b = torch.zeros(3, device=device), torch.arange(6.0).to(device)
        assert a.set_(b) is a
        assert (a.data_ptr(), a.shape) == (b.data_ptr(), (6,))
        a.set_(b.untyped_storage(), 1, (2, 2), (1, 2))
        assert a.tolist() == [[1.0, 3.0], [2.0, 4.0]]
        a.add_(10)
        assert b.tolist() == [0.0, 11.0, 12.0, 13.0, 14.0, 5.0]
        a.set_(b.untyped_storage())
        assert a.tolist() == b.tolist()
        a.data = torch.full((2,), 4.0, device=device)
        assert a.tolist() == [4.0, 4.0]
        with pytest.raises(RuntimeError, match="device"):
            a.set_(torch.zeros(2, device="cpu").untyped_storage())
        other = SECOND if device == REFERENCE else REFERENCE
        with pytest.raises(RuntimeError, match="device"):
            a.set_(torch.zeros(2, device=other))
        a.set_()
        assert (a.shape, a.device) == ((0,), device)


# Host operands ---------------------------------------------------------------------------------------------------------------

MIXED: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "native": ("other", lambda x, h: x + h),
    "native, host first": ("self", lambda x, h: h + x),
    "fallback": ("other", torch.hypot),
    "in place": ("other", lambda x, h: x.mul_(h)),
    "in place on the host": ("self", lambda x, h: h.mul_(x)),
    "out on the host": ("out", lambda x, h: torch.add(x, 1, out=h)),
    "fallback, out on the host": ("out", lambda x, h: torch.hypot(x, x, out=h)),
    "mm": ("mat2", lambda x, h: torch.mm(x.view(2, 2), h.view(2, 2))),
    "linear": ("", lambda x, h: torch.nn.functional.linear(x.view(2, 2), h.view(2, 2))),
    "cat": ("tensors", lambda x, h: torch.cat([x, h])),
    "where": ("condition", lambda x, h: torch.where(h > 0, x, x)),
    "foreach": ("other", lambda x, h: torch._foreach_add([x], [h])),
    "scatter": ("index", lambda x, h: x.scatter(0, h.long(), 1.0)),
    "loss": ("", lambda x, h: torch.nn.functional.mse_loss(x, h)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session", "inference"])
@pytest.mark.parametrize("name", MIXED)
def test_a_host_operand_is_refused(name: str, where: str, device: torch.device) -> None:
    argument, call = MIXED[name]
    x, h = torch.ones(4, device=device), torch.ones(4)
    with (
        inside("outside" if where == "outside" else "session", device),
        torch.inference_mode(where == "inference"),
    ):
        for _ in range(2):
            with pytest.raises(flroute.DeviceError, match="same device") as caught:
                call(x, h)
    message = str(caught.value)
    assert f"'{argument}'" in message or not argument
    assert ".to(" in message
    assert str(device) in message
    assert "cpu" in message
    assert (x.tolist(), h.tolist()) == ([1.0] * 4, [1.0] * 4)


@pytest.mark.parametrize("name", ["native", "fallback", "in place", "mm", "cat", "out on the host"])
def test_an_operand_on_another_device_is_refused(name: str) -> None:
    _, call = MIXED[name]
    for other in (SECOND, OPAQUE):
        with pytest.raises(flroute.DeviceError, match="same device"):
            call(torch.ones(4, device=REFERENCE), torch.ones(4, device=other))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_a_host_number_is_an_operand(where: str, device: torch.device) -> None:
    x, two = torch.ones(4, device=device), torch.tensor(2.0)
    with inside(where, device):
        for result in (
            x + two,
            two + x,
            x * two,
            torch.where(x > 0, two, x),
            x.clone().mul_(two) + 0,
            torch.hypot(x, two),
        ):
            assert result.device == device
        assert (x + two).tolist() == [3.0] * 4
        assert (two - x).tolist() == [1.0] * 4
        assert torch.hypot(two, x).tolist() == pytest.approx([5**0.5] * 4)
        with pytest.raises(flroute.DeviceError, match="same device"):  # the same signature, but for the shape
            x + torch.ones(4)
        assert (x + two).tolist() == [3.0] * 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_a_host_number_is_not_an_output(where: str, device: torch.device) -> None:
    """As on cuda: the host's 0-dim tensors may be read, not written."""
    x = torch.tensor(3.0).to(device)
    with inside(where, device):
        for write in (
            lambda h: h.add_(x),
            lambda h: h.hypot_(x),
            lambda h: torch.add(x, 1, out=h),
            lambda h: torch.hypot(x, x, out=h),
        ):
            h = torch.tensor(1.0)
            with pytest.raises(flroute.DeviceError, match="same device"):
                write(h)
            assert h.item() == 1


def test_host_indices_are_allowed() -> None:
    x = torch.arange(6.0).reshape(3, 2).to(REFERENCE)
    rows, mask = torch.tensor([2, 0]), torch.tensor([True, False, True])
    for where in ("outside", "session"):
        with inside(where, REFERENCE):
            assert x[rows].tolist() == [[4.0, 5.0], [0.0, 1.0]]
            assert x[mask].tolist() == [[0.0, 1.0], [4.0, 5.0]]
            y = x.clone()
            y[rows, 1] = -1.0
            assert y.tolist() == [[0.0, -1.0], [2.0, 3.0], [4.0, -1.0]]
