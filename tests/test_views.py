"""Views on the device are PyTorch's own: geometry, storage, version counters and gradients are those of the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flroute

aten = torch.ops.aten

REFERENCE, OPAQUE = flroute.device("reference:0"), flroute.device("opaque:0")
DEVICES = [pytest.param(REFERENCE, id="reference"), pytest.param(OPAQUE, id="opaque")]
MODES = ("outside", "session", "inference")

View = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def mode(name: str, device: torch.device) -> Iterator[None]:
    """``name`` in force; for the host, which is what the device is compared with, without a session."""
    if name == "outside" or (name == "session" and device.type == "cpu"):
        yield
    elif device.type == "cpu":
        with torch.inference_mode():
            yield
    elif name == "session":
        with flroute.enable(device, fallback="allow"):
            yield
    else:
        with flroute.enable(device, fallback="allow"), torch.inference_mode():
            yield


def matrix(device: torch.device) -> torch.Tensor:
    return torch.arange(24.0, device="cpu").reshape(4, 6).div(8).to(device)


VIEWS: dict[str, View] = {
    "slice": lambda x: x[1:3],
    "slice with steps": lambda x: x[::2, 1::3],
    "slice from behind": lambda x: x[-3:-1, -5:],
    "empty slice": lambda x: x[3:1],
    "select": lambda x: x[2],
    "select from behind": lambda x: x.select(1, -2),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(-1, 0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "view": lambda x: x.view(3, 8),
    "view with a dimension to infer": lambda x: x.view(2, -1, 3),
    "view_as": lambda x: x.view_as(x.new_empty(8, 3)),
    "reshape": lambda x: x.reshape(-1),
    "reshape of a slice": lambda x: x[1:3].reshape(2, 3, 2),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "diagonal": lambda x: x.diagonal(),
    "diagonal off the main one": lambda x: x.diagonal(1, 1, 0),
    "unfold without overlap": lambda x: x.unfold(1, 3, 3),
    "squeeze": lambda x: x[1:2].squeeze(),
    "squeeze of a dimension": lambda x: x[:, 2:3].squeeze(1),
    "squeeze of dimensions": lambda x: x[:1, 2:3].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "unsqueeze at the end": lambda x: x.unsqueeze(-1),
    "index with None": lambda x: x[None, 1:, None],
    "index with an ellipsis": lambda x: x[..., 3],
    "chunk": lambda x: x.chunk(3, 1)[1],
    "split": lambda x: x.split(3, 1)[1],
    "split into sizes": lambda x: x.split([1, 3])[1],
    "tensor_split": lambda x: x.tensor_split(4, 1)[2],
    "hsplit": lambda x: x.hsplit(2)[1],
    "unbind": lambda x: x.unbind(1)[4],
    "expand of nothing": lambda x: x.expand(4, 6),
    "expand by a dimension of one": lambda x: x.expand(1, 4, 6),
    "as_strided": lambda x: x.as_strided((3, 2), (6, 2), 1),
    "view of the same dtype": lambda x: x.view(torch.float32),
    "alias": aten.alias,
    "a view of a view of a view": lambda x: x.t()[1:4].unsqueeze(0).transpose(0, 2)[::2],
}
MULTIPLE = {"chunk", "split", "split into sizes", "tensor_split", "hsplit", "unbind"}
"""Autograd refuses in-place writes through one of several views, so these are written without gradients."""

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "mul_": lambda v: v.mul_(3),
    "hypot_": lambda v: v.hypot_(v.detach() + 2),
    "copy_": lambda v: v.copy_(v.detach().flip(0) if v.dim() else v.detach() + 1),
    "assignment": lambda v: v.__setitem__(..., 7.0),
}


def geometry(view: torch.Tensor, base: torch.Tensor) -> tuple[Any, ...]:
    """All that is known of a view without its data."""
    same_storage = view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    is_view = view._is_view() and view._base is (base if base._base is None else base._base)
    return tuple(view.shape), view.stride(), view.storage_offset(), view.dtype, same_storage, is_view


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
def test_write_through_a_view(name: str, write: str, where: str, device: torch.device) -> None:
    seen = []
    for target in (torch.device("cpu"), device):
        with mode(where, target):
            wants_grad = where != "inference" and name not in MULTIPLE
            leaf = matrix(target).requires_grad_(wants_grad)
            base = leaf * 2
            view = VIEWS[name](base)
            facts = geometry(view, base)
            WRITES[write](view)
            versions = None if where == "inference" else (base._version, view._version)
            if wants_grad:
                base.pow(2).sum().backward()
            seen.append((facts, versions, base.detach().tolist(), view.detach().tolist(), leaf.grad))
    host, there = seen
    assert there[:2] == host[:2]
    torch.testing.assert_close(there[2:4], host[2:4])
    if host[4] is not None:
        assert there[4].device == device
        torch.testing.assert_close(there[4].cpu(), host[4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize("name", VIEWS)
def test_write_to_a_leaf_under_no_grad(name: str, where: str, device: torch.device) -> None:
    """As optimizers and initialisers do: the leaf's version counter moves, its gradient does not see the write."""
    seen = []
    for target in (torch.device("cpu"), device):
        with mode(where, target):
            leaf = matrix(target).requires_grad_()
            with torch.no_grad():
                view = VIEWS[name](leaf)
                view.add_(1)
            leaf.pow(2).sum().backward()
            assert leaf.grad is not None
            seen.append((leaf._version, view._version, leaf.tolist(), leaf.grad.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("where", ["outside", "session"])
@pytest.mark.parametrize(
    "name", [name for name in VIEWS if name != "view of the same dtype"]
)  # has no gradient at all
def test_gradient_through_a_view(name: str, where: str) -> None:
    grads = []
    for target in (torch.device("cpu"), REFERENCE):
        with mode(where, target):
            leaf = matrix(target).requires_grad_()
            (VIEWS[name](leaf) * 3).pow(2).sum().backward()
            assert leaf.grad is not None
            grads.append(leaf.grad.tolist())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("where", ["outside", "session"])
def test_a_saved_tensor_modified_through_a_view_is_noticed(where: str) -> None:
    with mode(where, REFERENCE):
        leaf = torch.ones(4, 4, device=REFERENCE, requires_grad=True)
        saved = leaf.exp()
        with torch.no_grad():
            saved.t()[1:].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()


@pytest.mark.parametrize("where", ["outside", "session"])
def test_detach_shares_memory_and_version(where: str) -> None:
    with mode(where, REFERENCE):
        leaf = torch.ones(3, device=REFERENCE, requires_grad=True)
        base = leaf * 2
        free = base.detach()
        free.mul_(5)
        assert not free.requires_grad
        assert (base._version, free._version) == (1, 1)
        assert free.data_ptr() == base.data_ptr()
        assert base.tolist() == [10.0] * 3


# Views that change the dtype, lazy bits -------------------------------------------------------------------------

COMPLEX_VIEWS: dict[str, View] = {
    "view_as_real": torch.view_as_real,
    "view_as_real and select": lambda z: torch.view_as_real(z)[..., 1],
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "view as float": lambda z: z.view(torch.float32),
    "conj": lambda z: z.conj(),
    "imaginary part of conj": lambda z: z.conj().imag,
    "adjoint": lambda z: z.mH,
    "slice of conj": lambda z: z.conj()[1:, ::2],
    "transpose of conj": lambda z: z.conj().t(),
    "unsqueezed conj": lambda z: z.conj().unsqueeze(0)[0].select(0, 1),
    "view_as_complex of view_as_real": lambda z: torch.view_as_complex(torch.view_as_real(z)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("name", COMPLEX_VIEWS)
def test_write_through_a_view_of_complex_numbers(name: str, where: str, device: torch.device) -> None:
    numbers = torch.complex(torch.arange(6.0), 1 - torch.arange(6.0)).reshape(2, 3)
    seen = []
    for target in (torch.device("cpu"), device):
        with mode(where, target):
            leaf = numbers.clone().to(target).requires_grad_(where != "inference")
            base = leaf * 2
            view = COMPLEX_VIEWS[name](base)
            facts = (geometry(view, base), view.is_conj(), view.is_neg())
            view.mul_(3)
            versions = None if where == "inference" else (base._version, view._version)
            if where != "inference":
                torch.view_as_real(base).pow(2).sum().backward()
            seen.append((facts, versions, base.tolist(), view.tolist(), leaf.grad))
    host, there = seen
    assert there[:2] == host[:2]
    torch.testing.assert_close(there[2:4], host[2:4])
    if host[4] is not None:
        torch.testing.assert_close(there[4].cpu(), host[4])


@pytest.mark.parametrize("device", DEVICES)
def test_view_of_another_width(device: torch.device) -> None:
    for dtype in (torch.uint8, torch.int16, torch.float64, torch.bfloat16, torch.complex64):
        host, there = matrix(torch.device("cpu")), matrix(device)
        a, b = host[:, 2:].view(dtype), there[:, 2:].view(dtype)
        assert geometry(b, there) == geometry(a, host)
        assert torch.equal(b.cpu().view(torch.uint8), a.view(torch.uint8))
        b.zero_()
        a.zero_()
        assert there.tolist() == host.tolist()


# What the host refuses --------------------------------------------------------------------------------------------

REFUSED: dict[str, View] = {
    "write through expand": lambda x: x[:, :1].expand(4, 6).add_(1),
    "copy through expand": lambda x: x[:, :1].expand(4, 6).copy_(x),
    "relu through expand": lambda x: x[:, :1].expand(4, 6).relu_(),
    "assignment through expand": lambda x: x[:1].expand(4, 6).__setitem__(..., x),  # type: ignore[func-returns-value]
    "view across a gap": lambda x: x[:, :3].view(-1),
    "view of a wrong size": lambda x: x.view(5, 5),
    "as_strided beyond the storage": lambda x: x.as_strided((10, 10), (6, 1)),
    "select beyond the end": lambda x: x.select(0, 4),
    "transpose of a missing dimension": lambda x: x.transpose(0, 2),
    "t of three dimensions": lambda x: x[None].t(),
    "permute with a dimension twice": lambda x: x.permute(0, 0),
    "narrow beyond the end": lambda x: x.narrow(0, 2, 3),
    "step of nought": lambda x: aten.slice(x, 0, 0, 4, 0),
    "expand of a larger size": lambda x: x.expand(8, 6),
    "squeeze of a missing dimension": lambda x: x.squeeze(3),
    "view of a dtype that does not fit": lambda x: x[:, :3].view(torch.float64),
    "write of a shape that does not fit": lambda x: x[:2].add_(x),
    "copy of a shape that does not fit": lambda x: x[:2].copy_(x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_the_host(name: str, where: str, device: torch.device) -> None:
    host, there = matrix(torch.device("cpu")), matrix(device)
    with pytest.raises(Exception) as expected:  # noqa: PT011 -- whatever the host raises
        REFUSED[name](host)
    with mode(where, device), pytest.raises(expected.type):
        REFUSED[name](there)
    assert there.tolist() == matrix(torch.device("cpu")).tolist(), "a refused write wrote something"


# Geometry, against PyTorch's own ------------------------------------------------------------------------------------


@st.composite
def strided(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes, strides and offset of any tensor, empty and overlapping ones included."""
    sizes = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    strides = tuple(draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes))))
    return sizes, strides, draw(st.integers(0, 5))


BOUND = st.one_of(
    st.none(), st.integers(-6, 6), st.sampled_from([2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63)])
)
DIM = st.integers(-6, 5)
CALLS = st.one_of(
    st.tuples(st.just(aten.t.default)),
    st.tuples(st.just(aten.transpose.int), DIM, DIM),
    st.tuples(st.just(aten.permute.default), st.lists(DIM, max_size=5)),
    st.tuples(st.just(aten.permute.default), st.integers(0, 4).flatmap(lambda n: st.permutations(range(n)))),
    st.tuples(st.just(aten.slice.Tensor), DIM, BOUND, BOUND, st.integers(-1, 5)),
    st.tuples(st.just(aten.slice.Tensor), st.integers(0, 3), BOUND, BOUND),
    st.tuples(
        st.just(aten.select.int), DIM, st.one_of(st.integers(-6, 6), st.sampled_from([2**62, -(2**63)]))
    ),
    st.tuples(st.just(aten.unsqueeze.default), DIM),
)


def outcome(call: Callable[[], torch.Tensor]) -> tuple[Any, ...]:
    try:
        result = call()
    except Exception as error:  # compared with the host's
        return type(error), str(error)
    return tuple(result.shape), result.stride(), result.storage_offset()


_HOST_MEMORY = torch.arange(128.0)
_DEVICE_MEMORY = _HOST_MEMORY.to(REFERENCE)


@settings(max_examples=400, deadline=None)
@given(layout=strided(), call=CALLS)
def test_geometry_is_pytorchs_own(layout: tuple[Any, ...], call: tuple[Any, ...]) -> None:
    op, *arguments = call
    host, there = _HOST_MEMORY.as_strided(*layout), _DEVICE_MEMORY.as_strided(*layout)
    expected = outcome(lambda: op(host, *arguments))
    assert outcome(lambda: op(there, *arguments)) == expected
    with flroute.enable(REFERENCE):
        assert outcome(lambda: op(there, *arguments)) == expected


@settings(max_examples=150, deadline=None)
@given(layout=strided(), call=CALLS)
def test_geometry_keeps_lazy_bits(layout: tuple[Any, ...], call: tuple[Any, ...]) -> None:
    op, *arguments = call
    numbers = torch.complex(_HOST_MEMORY, -_HOST_MEMORY)
    results = []
    for memory in (numbers, numbers.to(REFERENCE)):
        try:
            view = op(memory.as_strided(*layout).conj(), *arguments)
        except Exception as error:  # compared with the host's
            results.append(type(error))
        else:
            results.append((view.is_conj(), view.is_neg(), view.tolist(), view.imag.is_neg()))
    assert results[0] == results[1]


SLICE = st.builds(
    slice, st.integers(-7, 7) | st.none(), st.integers(-7, 7) | st.none(), st.integers(1, 4) | st.none()
)


@settings(max_examples=150, deadline=None)
@given(
    rows=SLICE, columns=SLICE, transposed=st.booleans(), where=st.sampled_from(MODES), opaque=st.booleans()
)
def test_any_slice_can_be_written(
    rows: slice, columns: slice, transposed: bool, where: str, opaque: bool
) -> None:
    device = OPAQUE if opaque else REFERENCE
    seen = []
    for target in (torch.device("cpu"), device):
        with mode(where, target):
            base = matrix(target)
            (base.t() if transposed else base)[rows, columns] *= -1
            (base.t() if transposed else base)[rows, columns].copysign_(base.sum())
            seen.append(base.tolist())
    assert seen[0] == seen[1]


# out= -------------------------------------------------------------------------------------------------------------

INTO: dict[str, Callable[..., Any]] = {
    "native": lambda x, out: torch.add(x, 1, out=out),
    "fallback": lambda x, out: torch.hypot(x, x, out=out),
    "reduction": lambda x, out: torch.sum(x, 1, out=out),
    "matrix product": lambda x, out: torch.mm(x, x.t(), out=out),
    "several results": lambda x, out: torch.aminmax(x, dim=1, out=(out, torch.empty_like(out))),
}
OUTPUTS: dict[str, Callable[[torch.Tensor, torch.Size], torch.Tensor]] = {
    "contiguous part": lambda memory, size: memory[16 : 16 + size.numel()].view(size),
    "every other element": lambda memory, size: memory[3 : 3 + 2 * size.numel() : 2].unflatten(0, size),
    "transposed": lambda memory, size: (
        memory[16 : 16 + size.numel()].view(size[::-1]).mT
        if len(size) > 1
        else memory[16 : 16 + size.numel()]
    ),
    "empty": lambda memory, size: memory[16:16],
    "empty of another shape": lambda memory, size: memory[16:16].view(0, 3),
    "too small": lambda memory, size: memory[16:18],
    "too large": lambda memory, size: memory[16:80],
    "too large and strided": lambda memory, size: memory[16::2],
}


def size_of_result(op: str) -> torch.Size:
    x = torch.zeros(3, 5)
    out = torch.empty(0)
    INTO[op](x, out)
    return out.shape


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("op", INTO)
def test_out_into_a_view(op: str, output: str, where: str, device: torch.device) -> None:
    size = size_of_result(op)
    seen = []
    for target in (torch.device("cpu"), device):
        with mode(where, target), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            memory = torch.zeros(96, device=target)
            x = (torch.arange(15.0, device="cpu").reshape(3, 5) / 4 + 1).to(target)
            out = OUTPUTS[output](memory, size)
            returned = INTO[op](x, out)
            first = returned[0] if isinstance(returned, tuple) else returned
            assert first is out
            facts = tuple(out.shape), out.stride(), out.storage_offset()
            same = out.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            resized = sum("was resized" in str(w.message) for w in caught)
            seen.append((facts, same, resized > 0, memory.tolist(), out.tolist()))
    host, there = seen
    assert there[:3] == host[:3]
    torch.testing.assert_close(there[3:], host[3:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", MODES)
@pytest.mark.parametrize("op", INTO)
def test_out_that_owns_its_memory_grows(op: str, where: str, device: torch.device) -> None:
    for start in (torch.empty(0, device=device), torch.empty(2, device=device)):
        with mode(where, device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = (torch.arange(15.0, device="cpu").reshape(3, 5) / 4 + 1).to(device)
            expected = torch.empty(0, device="cpu")
            INTO[op](x.cpu(), expected)
            INTO[op](x, start)
            torch.testing.assert_close(start.cpu(), expected)
            assert start.stride() == expected.stride()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["outside", "session"])
def test_out_bumps_the_version(where: str, device: torch.device) -> None:
    with mode(where, device):
        x, memory = torch.ones(3, device=device), torch.zeros(6, device=device)
        torch.add(x, x, out=memory[1:4])
        torch.hypot(x, x, out=memory[1:4])
        assert memory._version == 2


@pytest.mark.parametrize("op", [torch.add, torch.hypot])
def test_out_of_a_dtype_that_cannot_hold_the_result(op: Callable[..., Any]) -> None:
    x, out = torch.ones(3, device=REFERENCE), torch.zeros(3, dtype=torch.int64, device=REFERENCE)
    with pytest.raises(RuntimeError, match="can't be cast"):
        op(x, x, out=out)
    assert out.tolist() == [0, 0, 0]
