"""The hot path gives what the general path gives, whatever the calls before were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flroute
from flroute.routing.native import Invocation
from flroute.vendor import Kernel, Unsupported
from support import COPY, Made, Vendors, decision_of, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

HOW = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1),
    "every second": lambda t: t[..., ::2],
    "from the second": lambda t: t[..., 1:],
    "expanded": lambda t: t[..., :1].expand(t.shape),
    "parameter": torch.nn.Parameter,
    "requires grad": lambda t: t.detach().requires_grad_(),
    "a view of a parameter": lambda t: torch.nn.Parameter(t).t(),
}
"""Other forms of one tensor."""


def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return a + alpha * b


@pytest.fixture
def made(vendors: Vendors) -> Made:
    return vendors(
        Kernel("aten::add.Tensor", add, dtypes=(torch.float32, torch.float64, torch.int32)),
        Kernel(
            "aten::neg",
            named("neg", lambda x: -x),
            dtypes=(torch.float32, torch.float64, torch.int32),
        ),
        COPY,
    )


calls = st.lists(
    st.tuples(
        st.sampled_from(list(HOW)),
        st.sampled_from(list(HOW)),
        st.sampled_from([(2, 2), (3, 3), (4,), (1, 1), (0, 2), ()]),
        st.sampled_from([torch.float32, torch.float64, torch.int32]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


def made_as(how: str, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> torch.Tensor:
    t = torch.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape).to(dtype).to(device)
    if not dtype.is_floating_point and ("param" in how or "grad" in how):
        return t
    return HOW[how](t) if shape or how in ("parameter", "requires grad") else t


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls)
def test_any_sequence_of_calls_gives_what_the_host_gives(made: Made, calls: list[Any]) -> None:
    """Signatures change: contiguous and strided, Tensor and Parameter, with and without gradient, on two devices."""
    count = 0
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for how_a, how_b, shape, dtype, index in calls:
            a, b = (made_as(how, shape, dtype, "cpu") for how in (how_a, how_b))
            device = made.devices[index].torch_device
            x, y = (made_as(how, shape, dtype, device) for how in (how_a, how_b))
            if a.shape != b.shape:
                continue
            for _ in range(2):
                for got, expected in ((torch.add(x, y), torch.add(a, b)), (torch.neg(x), torch.neg(a))):
                    assert (got.device, got.dtype, got.shape) == (device, expected.dtype, expected.shape)
                    assert got.numel() == 0 or got.stride() == expected.stride()
                    assert got.requires_grad == expected.requires_grad
                    assert torch.equal(got.detach().cpu(), expected.detach())
                count += 2
    assert (
        sum(
            d.calls
            for d in session.decisions
            if d.route == "native" and d.op in ("aten::add.Tensor", "aten::neg")
        )
        == count
    )


@pytest.mark.parametrize("timing", [False, True])
def test_the_hot_path_is_taken_once_a_call_was_checked(
    timing: bool, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of the above tests the general path only."""
    general: list[int] = []
    run = Invocation._run_functional
    monkeypatch.setattr(
        Invocation, "_run_functional", lambda self, *rest: (general.append(1), run(self, *rest))[1]
    )
    with flroute.enable(made.name, fallback="error", default_device=False, timing=timing) as session:
        x, column = made.put(torch.ones(3)), made.put(torch.ones(3, 3))[:, 1]
        for t in (x, column):
            for _ in range(5):
                torch.add(t, x)
    assert len(general) == 2
    decision = decision_of(session, "aten::add.Tensor")
    assert (decision.calls, decision.seconds is not None) == (10, timing)


def test_gradients_flow_through_the_hot_path(made: Made) -> None:
    host = torch.ones(3, requires_grad=True)
    leaf = made.put(torch.ones(3)).requires_grad_()
    with flroute.enable(made.name, fallback="allow", default_device=False):
        for tensor in (host, leaf):
            total = torch.add(torch.neg(tensor), torch.neg(tensor))
            for _ in range(4):
                total = torch.add(total, tensor)
            total.sum().backward()
    assert leaf.grad is not None
    assert host.grad is not None
    assert leaf.grad.tolist() == host.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("session", [True, False], ids=["session", "no session"])
def test_several_results_of_one_tensor(session: bool) -> None:
    host = torch.arange(16.0).reshape(1, 1, 4, 4)
    x = host.to("fl")
    with flroute.enable("reference", fallback="error", default_device=False) if session else torch.no_grad():
        for _ in range(4):
            values, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
            assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)
            assert values.tolist() == [[[[5, 7], [13, 15]]]]
            assert indices.tolist() == [[[[5, 7], [13, 15]]]]


def test_several_results_of_two_tensors(vendors: Vendors) -> None:
    def mode_of(a: Any, b: Any) -> Any:
        return a + b, a - b

    with torch.library._scoped_library("flroute_test_hot", "FRAGMENT") as library:
        library.define("both(Tensor a, Tensor b) -> (Tensor, Tensor)")
        library.impl("both", lambda a, b: (a + b, a - b), "Meta")
        made = vendors(Kernel("flroute_test_hot::both", mode_of))
        a, b = made.put(torch.ones(2)), made.put(torch.ones(2))
        for strided in (False, True):
            x = made.put(torch.ones(2, 2))[:, 0] if strided else a
            for _ in range(4):
                plus, minus = torch.ops.flroute_test_hot.both(x, b)
                assert (plus.tolist(), minus.tolist()) == ([2, 2], [0, 0])


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
def test_bfloat16_comes_to_the_kernel_as_uint16_and_goes_back(in_session: bool, vendors: Vendors) -> None:
    seen = set()

    def negate(x: Any) -> Any:
        seen.add(x.dtype)
        return x ^ np.uint16(0x8000)

    made = vendors(Kernel("aten::neg", negate, dtypes=(torch.bfloat16,)))
    x = made.put(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    with flroute.enable(made.name, fallback="error") if in_session else torch.no_grad():
        for _ in range(4):
            result = torch.neg(x)
            assert result.dtype == torch.bfloat16
            assert result.tolist() == [-1.5, 2.0]
    assert seen == {np.dtype(np.uint16)}


@pytest.mark.parametrize("how", ["in place", "out", "a result of unknown size"])
def test_bfloat16_keeps_its_dtype_in_every_form(how: str, vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::neg", named("neg", lambda x: x ^ np.uint16(0x8000)), dtypes=(torch.bfloat16,)),
        Kernel(
            "aten::masked_select",
            named("select", lambda self, mask: self[mask]),
            dtypes=(torch.bfloat16, torch.bool),
            mixed=True,
        ),
        COPY,
    )
    forms: dict[str, Callable[[Any], Any]] = {
        "in place": lambda x: x.neg_(),
        "out": lambda x: torch.neg(x, out=torch.empty_like(x)),
        "a result of unknown size": lambda x: torch.masked_select(x, x > 0),
    }
    host = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    with flroute.enable(made.name, fallback="allow", default_device=False):
        for _ in range(3):
            result = forms[how](made.put(host))
            assert result.dtype == torch.bfloat16
            assert torch.equal(result.cpu(), forms[how](host.clone()))


def test_what_a_scalar_changes_is_checked_too(vendors: Vendors) -> None:
    """A call that differs in a scalar is another call: its shape may differ."""

    def wrong_for_rows(x: Any, dim: Any = (), keepdim: Any = False) -> Any:
        return x.max(axis=tuple(dim)) if 0 in dim else x

    made = vendors(Kernel("aten::amax", wrong_for_rows))
    with flroute.enable(made.name, fallback="error", default_device=False):
        x = made.put(torch.ones(2, 3))
        for _ in range(3):
            assert torch.amax(x, 0).shape == (3,)
        with pytest.raises(flroute.KernelResultError):
            torch.amax(x, 1)


def test_a_predicate_that_raises_when_warm_is_still_the_vendors_error(vendors: Vendors) -> None:
    def choosy(x: Any, dim: Any, half: Any) -> bool:
        if dim == 1:
            raise ZeroDivisionError("in the predicate")
        return True

    softmax = named("softmax", lambda x, dim, half: np.exp(x) / np.exp(x).sum(axis=dim, keepdims=True))
    made = vendors(Kernel("aten::_softmax", softmax, when=choosy))
    with flroute.enable(made.name, fallback="error", default_device=False):
        x = made.put(torch.zeros(2, 2))
        for _ in range(3):
            torch.softmax(x, 0)
        with pytest.raises(flroute.VendorError, match="in the predicate"):
            torch.softmax(x, 1)


def test_a_warm_kernel_may_still_decline(vendors: Vendors) -> None:
    def positive_only(x: Any) -> Any:
        if (x < 0).any():
            raise Unsupported("negative numbers")
        return -x

    made = vendors(Kernel("aten::neg", positive_only))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        for value in (1.0, 1.0, -1.0, 1.0):
            assert torch.neg(made.put(torch.tensor([value]))).tolist() == [-value]
    native, fallback = decisions_of(session, "aten::neg")
    assert (native.calls, fallback.calls, fallback.reason) == (3, 1, "unsupported")


def test_timing_and_debug_take_the_general_path_and_agree(made: Made) -> None:
    for settings_ in ({"timing": True}, {"debug": True}, {}):
        with flroute.enable(made.name, fallback="error", default_device=False, **settings_) as session:
            x = made.put(torch.ones(2, 2))
            for _ in range(4):
                assert torch.add(x, x.t()).tolist() == [[2, 2], [2, 2]]
        assert decision_of(session, "aten::add.Tensor").calls == 4


@pytest.mark.parametrize("form", ["conj", "neg"])
def test_lazy_bits_are_resolved_when_warm(form: str) -> None:
    host = torch.tensor([1 + 2j, 3 - 1j])
    view: Callable[[Any], Any] = torch.conj if form == "conj" else lambda t: t.conj().imag
    x = host.to("fl")
    plain = torch.ones(2).to("fl") if form == "neg" else x
    with flroute.enable("reference", fallback="allow", default_device=False):
        for _ in range(3):
            torch.add(plain, plain)
        lazy = view(x)
        assert lazy.is_conj() or lazy.is_neg()
        for _ in range(3):
            assert torch.equal(torch.add(lazy, plain).cpu(), torch.add(view(host), plain.cpu()))


def test_ops_that_see_lazy_negation_resolve_it_when_warm(vendors: Vendors) -> None:
    """PyTorch hands ``clone`` the lazy view itself, not a resolved one."""

    def clone(x: Any, *, memory_format: Any = None) -> Any:
        return x.copy()

    made = vendors(Kernel("aten::clone", clone))
    host = torch.tensor([1 + 2j, 3 - 1j])
    lazy, expected = made.put(host).conj().imag, host.conj().imag
    with flroute.enable(made.name, fallback="allow", default_device=False):
        for _ in range(3):
            made.put(torch.ones(4))[::2].clone()
        assert lazy.is_neg()
        for _ in range(3):
            assert torch.equal(lazy.clone().cpu(), expected)


def test_a_gradient_that_owns_no_memory_is_zeros_when_warm(made: Made) -> None:
    x = made.put(torch.ones(3))
    zeros = torch._efficientzerotensor((3,), device=made.device)
    with flroute.enable(made.name, fallback="allow", default_device=False):
        for _ in range(3):
            torch.add(x, x)
            assert torch.add(x, zeros).tolist() == [1, 1, 1]
            assert torch.add(zeros, x).tolist() == [1, 1, 1]


def test_the_table_of_signatures_does_not_grow_for_ever(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from flroute.routing import hot_path

    monkeypatch.setattr(hot_path, "MAX_ENTRIES", 8)
    sizes: list[int] = []
    remember = hot_path.HotPath.remember

    def watched(self: Any, *rest: Any) -> None:
        remember(self, *rest)
        sizes.append(len(self._entries))

    monkeypatch.setattr(hot_path.HotPath, "remember", watched)
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for size in range(1, 40):
            x = made.put(torch.ones(size))
            assert torch.neg(x).tolist() == torch.neg(x).tolist() == [-1] * size
    assert [d.calls for d in decisions_of(session, "aten::neg")] == [2] * 39
    assert sizes
    assert max(sizes) <= 8


def test_warm_calls_in_a_thread_of_their_own(made: Made) -> None:
    results: list[Any] = []
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        x = made.put(torch.ones(3))
        for _ in range(3):
            torch.neg(x)
        thread = threading.Thread(target=lambda: results.extend(torch.neg(x).tolist() for _ in range(3)))
        thread.start()
        thread.join()
    assert results == [[-1, -1, -1]] * 3
    assert decision_of(session, "aten::neg").calls == 6


# Ops that write ---------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in place": lambda x, y, _: x.add_(y),
    "in place, with a factor": lambda x, y, _: x.add_(y, alpha=0.5),
    "in place with itself": lambda x, _, __: x.mul_(x),
    "in place with its own view": lambda x, _, __: x.mul_(x.t().t()),
    "in place, transposed": lambda x, y, _: x.t().sub_(y),
    "in place, broadcast": lambda x, y, _: x.add_(y[0]),
    "fill_": lambda x, _, __: x.fill_(3.0),
    "zero_ of a column": lambda x, _, __: x[:, 1].zero_(),
    "lists": lambda x, y, z: torch._foreach_add_([x, z], [y, y], alpha=-2.0),
    "lists of views": lambda x, y, z: torch._foreach_mul_([x[0], z[1]], 3.0),
    "a list that has a tensor twice": lambda x, y, _: torch._foreach_add_([x, x], [y, y]),
    "a list out of lists": lambda x, y, z: torch._foreach_add([x, z], [y, y]),
}


@pytest.mark.parametrize("name", WRITES)
def test_warm_writes_are_those_of_the_host(name: str) -> None:
    kinds = [torch.arange(9.0).reshape(3, 3), torch.ones(3, 3), torch.full((3, 3), 2.0)]
    host, device = [t.clone() for t in kinds], [t.to("fl") for t in kinds]
    start = [(t._version, t.data_ptr()) for t in device]
    with flroute.enable("reference", fallback="error", default_device=False):
        for _ in range(4):
            expected, got = WRITES[name](*host), WRITES[name](*device)
            for a, b in zip([*host, *_flat(expected)], [*device, *_flat(got)], strict=True):
                assert torch.equal(a, b.cpu())
            if isinstance(expected, torch.Tensor):
                assert got.data_ptr() in [t.data_ptr() + 4 * expected.storage_offset() for t in device]
    assert [t._version - version for t, (version, _) in zip(device, start, strict=True)] == [
        t._version for t in host
    ]
    assert [t.data_ptr() for t in device] == [address for _, address in start]


def _flat(result: Any) -> list[torch.Tensor]:
    return [] if result is None else [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.mark.parametrize(
    "name", ["in place", "in place, with a factor", "fill_", "lists", "a list out of lists"]
)
def test_writes_take_the_hot_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    general: list[int] = []
    call = Invocation.call
    monkeypatch.setattr(Invocation, "call", lambda self, *rest: (general.append(1), call(self, *rest))[1])
    tensors = [torch.ones(3, 3).to("fl") for _ in range(3)]
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        for _ in range(5):
            WRITES[name](*tensors)
    assert len(general) == 1
    assert sum(d.calls for d in session.decisions if d.route == "native") == 5


def test_overlap_is_refused_when_warm() -> None:
    x = torch.arange(8.0).to("fl")
    with flroute.enable("reference", fallback="error", default_device=False):
        for _ in range(3):
            x[4:].add_(x[:4])
        before = x.tolist()
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:5].add_(x[:4])
    assert x.tolist() == before


def test_a_flag_is_not_a_number(vendors: Vendors) -> None:
    """``True == 1`` in Python, but not in a key."""

    def full_like(x: Any, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                  pin_memory: Any = None, memory_format: Any = None) -> Any:  # fmt: skip
        return np.full(
            x.shape, 5 if fill_value is True else fill_value, x.dtype if fill_value is True else "f8"
        )

    made = vendors(Kernel("aten::full_like", full_like))
    x = made.put(torch.ones(2))
    with flroute.enable(made.name, fallback="error", default_device=False):
        for _ in range(3):
            assert torch.full_like(x, True).tolist() == [5, 5]
        with pytest.raises(flroute.KernelResultError):
            torch.full_like(x, 1)


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
def test_a_memory_format_is_kept_once_results_are_trusted(
    in_session: bool, vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flroute.routing import native

    monkeypatch.setattr(native, "MAX_CHECKED", 2)

    def clone(x: Any, *, memory_format: Any = None) -> Any:
        return x.copy()

    made = vendors(Kernel("aten::clone", clone))
    session = flroute.enable(made.name, fallback="error", default_device=False)
    with session if in_session else torch.no_grad():
        for size in range(2, 7):
            made.put(torch.ones(2, 3, 4, size)).clone()
        x = torch.arange(48.0).reshape(2, 3, 2, 4)
        copy = made.put(x).clone(memory_format=torch.channels_last)
    assert copy.stride() == x.clone(memory_format=torch.channels_last).stride()
    assert torch.equal(copy.cpu(), x)


def test_results_that_are_not_row_major_are_never_trusted(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``linalg.qr`` returns column-major matrices, whatever its argument is."""
    from flroute.routing import native

    monkeypatch.setattr(native, "MAX_CHECKED", 2)

    def qr(A: Any, mode: Any = "reduced") -> Any:  # noqa: N803 -- PyTorch's own name for it
        return tuple(np.linalg.qr(A, mode))

    made = vendors(Kernel("aten::linalg_qr", qr))
    with flroute.enable(made.name, fallback="error", default_device=False):
        for size in range(2, 7):
            host = torch.arange(4.0 * size).reshape(4, size)
            got, expected = torch.linalg.qr(made.put(host)), torch.linalg.qr(host)
            assert [t.stride() for t in got] == [t.stride() for t in expected]


def test_empty_results_are_never_trusted(vendors: Vendors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host gives the product of an empty column and a row other strides than row-major ones."""
    from flroute.routing import native

    monkeypatch.setattr(native, "MAX_CHECKED", 2)
    made = vendors(Kernel("aten::mul.Tensor", named("mul", lambda self, other: self * other)))
    with flroute.enable(made.name, fallback="error", default_device=False):
        for size in range(2, 7):
            torch.mul(made.put(torch.ones(size, 1)), made.put(torch.ones(1)))
        column, row = torch.ones(0, 1), torch.ones(1)
        expected = torch.mul(column, row).stride()
        assert expected != (1, 1)
        assert torch.mul(made.put(column), made.put(row)).stride() == expected


@pytest.mark.parametrize(
    "refuses", [{"when": lambda x: False}, {"min_numel": 9}, {"layouts": ("contiguous",)}]
)
def test_a_kernel_behind_one_that_the_signature_rules_out_is_hot(
    refuses: dict[str, Any], vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vendors(
        Kernel("aten::neg", named("first", lambda x: -x), **refuses),
        Kernel("aten::neg", named("second", lambda x: -x)),
    )
    general: list[int] = []
    call = Invocation.call
    monkeypatch.setattr(Invocation, "call", lambda self, *rest: (general.append(1), call(self, *rest))[1])
    x = made.put(torch.ones(3, 4))[:, ::2]
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for _ in range(4):
            torch.neg(x)
    assert len(general) == 1
    assert decision_of(session, "aten::neg").calls == 4


def test_a_predicate_that_said_no_is_asked_again_on_the_hot_path(vendors: Vendors) -> None:
    admits = False
    made = vendors(
        Kernel("aten::neg", named("picky", lambda x: -x), when=lambda x: admits),
        Kernel("aten::neg", named("other", lambda x: -x)),
    )
    x = made.put(torch.ones(3))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for _ in range(3):
            torch.neg(x)
        admits = True
        torch.neg(x)
    assert {d.kernel: d.calls for d in decisions_of(session, "aten::neg")} == {
        f"{made.name}/python:other": 3,
        f"{made.name}/python:picky": 1,
    }


# bfloat16, which numpy holds as 16 bits without a name ---------------------------------------------------------------

CALLS: dict[str, Callable[..., Any]] = {
    "one result": torch.exp,
    "of two": lambda x: x * x,
    "with float32": lambda x: torch.where(x > 0, x, x.float()),
    "of another dtype": lambda x: x > 0,
    "several results": lambda x: x.topk(2),
    "a list": lambda x: torch._foreach_mul([x, x], 2.0),
    "a sum in float32": lambda x: x.sum(-1, dtype=torch.float32),
    "in place": lambda x: x.clone().mul_(x),
    "in place, of another dtype": lambda x: x.clone().eq_(0.5),
    "a list in place": lambda x: torch._foreach_add_([made := x.clone()], 1.0) or made,
    "to 16 bits": lambda x: x.abs().to(torch.uint16),
    "from 16 bits": lambda x: x.abs().to(torch.uint16).to(torch.bfloat16),
    "of 16 bits and bfloat16": lambda x: x + x.abs().to(torch.uint16),
}


@pytest.mark.parametrize("name", CALLS)
def test_bfloat16(name: str) -> None:
    call, host = CALLS[name], torch.tensor([[0.5, -2.0, 3.25], [4.0, 0.125, -0.5]]).bfloat16()
    device = host.to("fl")
    expected = call(host)
    with flroute.enable("reference", fallback="allow", default_device=False):
        for _ in range(4):
            found = call(device)
            for got, wanted in zip(_listed(found), _listed(expected), strict=True):
                torch.testing.assert_close(got.cpu(), wanted)
                assert got.stride() == wanted.stride()


def _listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


@pytest.mark.parametrize("name", ["one result", "of two", "several results", "a list", "a sum in float32"])
def test_bfloat16_takes_the_hot_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.tensor([[0.5, -2.0, 3.25], [4.0, 0.125, -0.5]]).bfloat16().to("fl")
    with flroute.enable("reference", fallback="error", default_device=False):
        for _ in range(2):
            general = CALLS[name](device)
        monkeypatch.setattr(Invocation, "call", lambda *_: pytest.fail("the general path"))
        for a, b in zip(_listed(CALLS[name](device)), _listed(general), strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_floats_in_a_list_make_no_entries_of_their_own() -> None:
    """An optimizer's bias corrections are other numbers in every step: each would be remembered for ever."""
    with flroute.enable("reference", default_device=False) as session:
        tensors = [torch.ones(3, device="fl"), torch.ones(2, device="fl")]
        for step in range(1, 6):
            torch._foreach_mul_(tensors, [1.0 + 1 / step, 2.0])
        handler = session.router.handler(torch.ops.aten._foreach_mul_.ScalarList)
        cells = zip(handler.__code__.co_freevars, handler.__closure__, strict=True)
        (entries,) = [cell.cell_contents for name, cell in cells if name == "entries"]
        assert len(entries) == 1
    assert tensors[1].tolist() == [32.0, 32.0]
