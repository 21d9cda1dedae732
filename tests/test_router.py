"""The router: candidates in order, why each was rejected, decomposition, and which device a call belongs to."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.vendor import Kernel, Unsupported
from flroute.vocabulary import Precision
from support import Made, Vendors, decision_of, decisions_of, named, throw_away_vendors, why_rejected

vendors = pytest.fixture(throw_away_vendors)


def relu_kernel(name: str, **facts: Any) -> Kernel:
    """A kernel of ``aten::relu`` called ``name``."""
    return Kernel("aten::relu", named(name, lambda x: np.maximum(x, 0)), **facts)


def declining(name: str, words: str = "not today", **facts: Any) -> Kernel:
    """A kernel of ``aten::relu`` that raises ``Unsupported``."""

    def decline(x: Any) -> Any:
        raise Unsupported(words)

    return Kernel("aten::relu", named(name, decline), **facts)


def relu_on(made: Made, host: torch.Tensor | None = None, **settings: Any) -> flroute.Decision:
    """One relu on a vendor in a session, checked against the host; the decision on it."""
    host = torch.tensor([-1.0, 0.0, 2.0]) if host is None else host
    settings = {"fallback": "allow", **settings}
    with flroute.enable(made.name, default_device=False, **settings) as session:
        result = torch.relu(made.put(host))
    assert torch.equal(result.cpu(), torch.relu(host))
    return decision_of(session, "aten::relu")


# -- candidates ----------------------------------------------------------------------------------------------------


def test_the_first_candidate_serves(vendors: Vendors) -> None:
    made = vendors(relu_kernel("first"), relu_kernel("second"))
    decision = relu_on(made)
    assert (decision.route, decision.reason) == ("native", "matched")
    assert decision.kernel == f"{made.name}/python:first"
    assert decision.device == str(made.device)
    assert decision.rejected == ()
    assert (decision.dtypes, decision.shapes, decision.calls) == (("float32",), ((3,),), 1)


@pytest.mark.parametrize(
    ("order", "taken"),
    [
        (["slow", "fast"], "fl_slow"),
        (["fast", "slow"], "fl_fast"),
        (["fast"], "fl_fast"),
        (["host"], None),
        (["host", "fast"], None),
        (["slow", "host"], "fl_slow"),
        (["nobody", "fast"], "fl_fast"),
        (["nobody"], None),
        (["{vendor}/fast:fl_fast"], "fl_fast"),
        (["{vendor}/fast:fl_fast", "{vendor}"], "fl_fast"),
        (["{vendor}"], "fl_slow"),
    ],
    ids=str,
)
def test_order_decides(order: list[str], taken: str | None, vendors: Vendors) -> None:
    made = vendors(
        relu_kernel("fl_slow", implementation="slow"), relu_kernel("fl_fast", implementation="fast")
    )
    order = [word.format(vendor=made.name) for word in order]
    decision = relu_on(made, order={"aten::relu": order})
    if taken is None:
        assert (decision.route, decision.reason) == ("fallback", "policy")
        assert why_rejected(decision) == [("fl_slow", "policy"), ("fl_fast", "policy")]
    else:
        assert decision.kernel is not None
        assert decision.kernel.endswith(f":{taken}")
        allowed = order[: order.index("host")] if "host" in order else order
        left_out = [
            (f"fl_{word}", "policy")
            for word in ("slow", "fast")
            if not {word, f"{made.name}/{word}:fl_{word}", made.name} & set(allowed)
        ]
        assert why_rejected(decision) == left_out


def test_order_of_the_functional_op_orders_its_in_place_form(vendors: Vendors) -> None:
    made = vendors(
        relu_kernel("fl_slow", implementation="slow"), relu_kernel("fl_fast", implementation="fast")
    )
    with flroute.enable(
        made.name, fallback="error", default_device=False, order={"aten::relu": ["fast"]}
    ) as session:
        made.put(torch.ones(3)).relu_()
    assert decision_of(session, "aten::relu_").kernel == f"{made.name}/fast:fl_fast"


def test_an_order_of_another_op_changes_nothing(vendors: Vendors) -> None:
    decision = relu_on(vendors(relu_kernel("own")), order={"aten::abs": ["host"]})
    assert (decision.route, decision.rejected) == ("native", ())


def test_dtypes_reject(vendors: Vendors) -> None:
    made = vendors(relu_kernel("doubles", dtypes=(torch.float64,)), relu_kernel("any"))
    decision = relu_on(made)
    assert decision.kernel == f"{made.name}/python:any"
    (rejection,) = decision.rejected
    assert (rejection.kernel, rejection.reason) == (f"{made.name}/python:doubles", "dtype")
    assert "float32" in rejection.detail
    assert relu_on(made, torch.ones(2, dtype=torch.float64)).kernel == f"{made.name}/python:doubles"


def test_dtypes_hold_for_every_tensor(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::mul.Tensor", lambda a, b: a * b, dtypes=(torch.float32, torch.float64)))
    single, double = made.put(torch.ones(2)), made.put(torch.ones(2, dtype=torch.float64))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        assert torch.equal((single * double).cpu(), torch.ones(2, dtype=torch.float64))
    decision = decision_of(session, "aten::mul.Tensor")
    assert (decision.route, decision.reason) == ("fallback", "dtype")
    assert "mixed dtypes" in decision.rejected[0].detail
    assert "float32" in decision.rejected[0].detail
    assert "float64" in decision.rejected[0].detail


def test_layouts_reject(vendors: Vendors) -> None:
    made = vendors(relu_kernel("rows", layouts=("contiguous",)), relu_kernel("any"))
    host = torch.randn(3, 4)
    assert relu_on(made, host).kernel == f"{made.name}/python:rows"
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        x = made.put(host)
        for _ in range(3):  # warm, then cold: the layout is looked at on each call
            assert torch.equal(torch.relu(x).cpu(), host.relu())
            assert torch.equal(torch.relu(x.t()).cpu(), host.t().relu())
    rows, any_layout = decisions_of(session, "aten::relu")
    assert (rows.kernel, rows.calls) == (f"{made.name}/python:rows", 3)
    assert (any_layout.kernel, any_layout.calls) == (f"{made.name}/python:any", 3)
    assert why_rejected(any_layout) == [("rows", "layout")]
    assert "contiguous" in any_layout.rejected[0].detail


def test_a_kernel_for_long_tensors_leaves_short_ones_to_the_next(vendors: Vendors) -> None:
    made = vendors(relu_kernel("long", min_numel=4), relu_kernel("any"))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for size in (3, 4, 3, 4, 0, 3):  # warm, then cold
            x = made.put(torch.arange(-1.0, size - 1))
            assert torch.equal(torch.relu(x).cpu(), torch.arange(-1.0, size - 1).relu())
    short, long, empty = decisions_of(session, "aten::relu")
    assert (long.kernel, long.calls) == (f"{made.name}/python:long", 2)
    assert (short.kernel, short.calls, empty.calls) == (f"{made.name}/python:any", 3, 1)
    assert why_rejected(short) == [("long", "size")]
    assert short.rejected[0].detail == "is for 4 elements or more"


def test_a_size_is_that_of_the_largest_tensor_read(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::mul.Tensor", lambda a, b: a * b, min_numel=4))
    one, many = made.put(torch.ones(1)), made.put(torch.ones(4))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        torch.mul(one, many)
        torch.mul(one, one, out=made.put(torch.ones(1)))
    assert [d.route for d in session.decisions if d.op.startswith("aten::mul")] == ["native", "fallback"]


@pytest.mark.parametrize("answer", [False, "only short vectors"])
def test_a_predicate_rejects_and_may_say_why(answer: bool | str, vendors: Vendors) -> None:
    made = vendors(relu_kernel("short", when=lambda x: True if x.numel() < 4 else answer), relu_kernel("any"))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        short, long = made.put(torch.ones(3)), made.put(torch.ones(5))
        for _ in range(3):
            torch.relu(short)
            torch.relu(long)
    first, second = decisions_of(session, "aten::relu")
    assert (first.kernel, first.calls) == (f"{made.name}/python:short", 3)
    assert (second.kernel, second.calls) == (f"{made.name}/python:any", 3)
    assert why_rejected(second) == [("short", "predicate")]
    assert second.rejected[0].detail == (answer or "its predicate said no")


def test_a_predicate_sees_the_ops_arguments_as_tensors(vendors: Vendors) -> None:
    seen: list[Any] = []

    def look(a: Any, b: Any, *, alpha: Any = 1) -> bool:
        seen.append((a, b, alpha))
        return True

    made = vendors(
        Kernel("aten::add.Tensor", named("add", lambda a, b, *, alpha=1: a + alpha * b), when=look)
    )
    a = made.put(torch.ones(2))
    with flroute.enable(made.name, fallback="error", default_device=False):
        torch.add(a, 3, alpha=2)
        torch.add(a, a)
    assert seen == [(a, 3, 2), (a, a, 1)] or [s[1:] for s in seen[:1]] == [(3, 2)]
    assert seen[0][0].device == made.device
    assert isinstance(seen[1][1], torch.Tensor)


def test_a_predicate_may_look_at_more_than_dtypes_and_shapes(vendors: Vendors) -> None:
    """The hot path asks it, too: what it answered for other scalars must not stand."""

    def along_rows(x: Any, dim: Any, half: Any) -> bool | str:
        return True if dim == 1 else "along rows only"

    def softmax(x: Any, dim: Any, half: Any) -> Any:
        assert dim == 1
        e = np.exp(x)
        return e / e.sum(axis=1, keepdims=True)

    made = vendors(Kernel("aten::_softmax", softmax, when=along_rows))
    host = torch.randn(3, 3)
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        x = made.put(host)
        for dim in (1, 1, 1, 0, 1, 0):
            torch.testing.assert_close(torch.softmax(x, dim).cpu(), torch.softmax(host, dim))
    native, fallback = decisions_of(session, "aten::_softmax")
    assert (native.route, native.calls) == ("native", 4)
    assert (fallback.route, fallback.reason, fallback.calls) == ("fallback", "predicate", 2)
    assert "along rows only" in fallback.detail


@pytest.mark.parametrize(
    ("admitted", "taken"), [("highest", "exact"), ("high", "quick"), ("medium", "rough")]
)
def test_a_session_admits_its_own_precision_and_above(admitted: str, taken: str, vendors: Vendors) -> None:
    made = vendors(
        relu_kernel("rough", precision=Precision.MEDIUM),
        relu_kernel("quick", precision=Precision.HIGH),
        relu_kernel("exact"),
    )
    decision = relu_on(made, precision=admitted)
    assert decision.kernel == f"{made.name}/python:{taken}"
    before = {"exact": ["rough", "quick"], "quick": ["rough"], "rough": []}[taken]
    assert why_rejected(decision) == [(name, "precision") for name in before]
    assert all(admitted in rejection.detail for rejection in decision.rejected)


def test_unsupported_goes_to_the_next_candidate_and_is_recorded(vendors: Vendors) -> None:
    made = vendors(declining("first", "only on Tuesdays"), relu_kernel("second"))
    decision = relu_on(made)
    assert decision.kernel == f"{made.name}/python:second"
    assert [(r.reason, r.detail) for r in decision.rejected] == [("unsupported", "only on Tuesdays")]


def test_unsupported_by_all_goes_to_the_host(vendors: Vendors) -> None:
    decision = relu_on(vendors(declining("first"), declining("second", "nor now")))
    assert (decision.route, decision.reason) == ("fallback", "unsupported")
    assert why_rejected(decision) == [("first", "unsupported"), ("second", "unsupported")]
    assert "not today" in decision.detail
    assert "nor now" in decision.detail


def test_a_kernel_may_decline_some_calls_of_a_signature(vendors: Vendors) -> None:
    def sometimes(x: Any) -> Any:
        if x.sum() < 0:
            raise Unsupported("a negative sum")
        return np.maximum(x, 0)

    made = vendors(Kernel("aten::relu", sometimes))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        for value in (1.0, 1.0, -1.0, 1.0, -1.0, -1.0):
            assert torch.relu(made.put(torch.tensor([value]))).item() == max(value, 0)
    native, fallback = decisions_of(session, "aten::relu")
    assert (native.route, native.calls) == ("native", 3)
    assert (fallback.route, fallback.reason, fallback.calls) == ("fallback", "unsupported", 3)


def test_every_rejection_on_the_way_is_recorded_in_order(vendors: Vendors) -> None:
    made = vendors(
        relu_kernel("rough", precision=Precision.MEDIUM),
        declining("declines"),
        relu_kernel("doubles", dtypes=(torch.float64,)),
        relu_kernel("rows", layouts=("contiguous",)),
        relu_kernel("short", when=lambda x: "too long"),
        relu_kernel("taken"),
    )
    decision = relu_on(made, torch.randn(3, 4).t())
    assert decision.kernel == f"{made.name}/python:taken"
    assert why_rejected(decision) == [
        ("rough", "precision"),
        ("declines", "unsupported"),
        ("doubles", "dtype"),
        ("rows", "layout"),
        ("short", "predicate"),
    ]


def test_an_in_place_kernel_and_a_functional_one_of_the_same_name_are_two(vendors: Vendors) -> None:
    def in_place(x: Any) -> None:
        np.maximum(x, 0, out=x)

    made = vendors(
        Kernel("aten::relu_", named("relu", in_place)),
        Kernel("aten::relu", named("relu", lambda x: np.full_like(x, 7))),
    )
    x = made.put(torch.tensor([-1.0, 2.0]))
    with flroute.enable(made.name, fallback="error", default_device=False):
        x.relu_()
    assert x.tolist() == [0, 2]


def test_a_custom_op_takes_a_vendors_kernel(vendors: Vendors) -> None:
    with torch.library._scoped_library("flroute_test_router", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        made = vendors(Kernel("flroute_test_router::twice", named("twice", lambda x: x + x)))
        for fallback in ("error", "allow"):
            with flroute.enable(made.name, fallback=fallback, default_device=False) as session:
                assert torch.ops.flroute_test_router.twice(made.put(torch.ones(2))).tolist() == [2, 2]
            assert decision_of(session, "flroute_test_router::twice").route == "native"


# -- composites ----------------------------------------------------------------------------------------------------


MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.mark.parametrize("mode", MODES)
def test_composites_are_split_in_every_grad_mode(mode: str) -> None:
    host = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    module.load_state_dict(host.state_dict())
    x = torch.randn(2, 5)
    with flroute.enable("reference", fallback="error") as session, MODES[mode]():
        result = module.to("fl")(x.to("fl"))
    torch.testing.assert_close(result.cpu(), host(x), check_device=False)
    assert result.requires_grad == (mode == "grad")
    computing = {d.op: d.route for d in session.decisions if d.route in ("native", "fallback")}
    assert computing["aten::addmm"] == "native"
    assert "aten::linear" not in computing


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_of_a_whole_composite_is_taken_where_it_arrives_whole(mode: str, vendors: Vendors) -> None:
    """Under grad and no_grad PyTorch has split it before anyone is asked; under inference_mode it arrives whole."""
    made = vendors(Kernel("aten::matmul", named("matmul", lambda a, b: a @ b)))
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    with flroute.enable(made.name, fallback="allow", default_device=False) as session, MODES[mode]():
        result = torch.matmul(made.put(a), made.put(b))
    torch.testing.assert_close(result.cpu(), a @ b)
    if mode == "inference_mode":
        assert decision_of(session, "aten::matmul").route == "native"
        assert not decisions_of(session, "aten::mm")
    else:
        assert decision_of(session, "aten::mm").route == "fallback"


def test_a_composite_without_a_kernel_is_decomposed_and_its_parts_are_routed() -> None:
    with flroute.enable("reference", fallback="error") as session, torch.inference_mode():
        a, b = torch.ones(2, 3), torch.ones(3, 4)
        assert torch.matmul(a, b).tolist() == [[3.0] * 4] * 2
    whole = decision_of(session, "aten::matmul")
    assert (whole.route, whole.reason, whole.kernel) == ("decomposed", "composite", None)
    assert decision_of(session, "aten::mm").route == "native"


# -- devices -------------------------------------------------------------------------------------------------------


def test_a_call_belongs_to_the_device_of_its_tensors_not_to_the_sessions() -> None:
    with flroute.enable("reference:0", fallback="error") as session:
        x = torch.ones(2, device="fl:1")
        assert torch.relu(x).device == torch.device("fl:1")
    assert decision_of(session, "aten::relu").device == "fl:1"


@pytest.mark.parametrize("warm", [0, 3], ids=["cold", "warm"])
@pytest.mark.parametrize("other", ["fl:1", "cpu"])
def test_operands_on_two_devices_are_an_error_that_names_the_argument(other: str, warm: int) -> None:
    a, b = torch.ones(2, 3, device="fl:0"), torch.ones(2, 3, device=other)
    here = torch.ones(2, 3, device="fl:0")
    with flroute.enable("reference", fallback="allow", default_device=False):
        for _ in range(warm):
            torch.add(a, here)
        for _ in range(2):
            with pytest.raises(flroute.DeviceError, match="'other'") as caught:
                torch.add(a, b)
            with pytest.raises(flroute.DeviceError, match="same device"):
                torch.add(b, a)
    assert other in str(caught.value)
    assert "fl:0" in str(caught.value)
    assert ".to(" in str(caught.value), "the remedy"


def test_operands_on_two_devices_are_an_error_outside_a_session_too() -> None:
    with pytest.raises(flroute.DeviceError, match="aten::add"):
        torch.ones(3, device="fl:0") + torch.ones(3)
    with pytest.raises(flroute.DeviceError, match="aten::cat"):
        torch.cat([torch.ones(3, device="fl:0"), torch.ones(3, device="fl:1")])


def test_a_host_scalar_tensor_counts_as_a_number_as_on_cuda() -> None:
    a, scalar = torch.ones(3, device="fl:0"), torch.tensor(2.0)
    with flroute.enable("reference", fallback="allow", default_device=False):
        for _ in range(3):
            assert (a * scalar).tolist() == [2, 2, 2]
            assert (scalar * a).tolist() == [2, 2, 2]
            assert (scalar * a).device == torch.device("fl:0")
        with pytest.raises(flroute.DeviceError):  # same dtypes and devices, but no scalar
            a * torch.ones(3)


def test_indices_may_stay_on_the_host_as_on_cuda() -> None:
    a = torch.arange(6.0, device="fl:0")
    with flroute.enable("reference", fallback="allow", default_device=False):
        assert a[torch.tensor([4, 1])].tolist() == [4, 1]


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
@pytest.mark.parametrize(
    "call",
    [torch.relu, torch.erfinv, torch.t, lambda x: x.add_(1)],
    ids=["native", "fallback", "view", "in place"],
)
def test_a_resolved_route_keeps_no_tensor_alive(call: Any, in_session: bool, vendors: Vendors) -> None:
    made = vendors(
        relu_kernel("own"), Kernel("aten::add.Tensor", named("add", lambda a, b, *, alpha=1: a + b))
    )
    with flroute.enable(made.name, fallback="allow", default_device=False) if in_session else torch.no_grad():
        x = made.put(torch.ones(3))
        alive = weakref.ref(x)
        call(x)
        del x
        gc.collect()
        assert alive() is None


class Clock:
    """Stands still, but for what a predicate spends."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("spends", "named"), [([0.5] * 9, True), ([0.5, 0.0] * 5, False), ([0.0005] * 9, False)]
)
def test_a_slow_predicate_is_named_once(
    spends: list[float],
    named: bool,
    vendors: Vendors,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from flroute.routing import predicates

    clock, left = Clock(), iter(spends)
    monkeypatch.setattr(predicates, "time", clock)

    def slow(x: torch.Tensor) -> bool:
        clock.now += next(left, 0.0)
        return True

    made = vendors(relu_kernel("ours", when=slow))
    with (
        caplog.at_level(logging.WARNING, "flroute"),
        flroute.enable(made.name, fallback="error", default_device=False) as session,
    ):
        for size in range(1, 5):
            torch.relu(made.put(torch.ones(size)))
    told = [r.getMessage() for r in caplog.records if "predicate" in r.getMessage()]
    assert len(told) == named
    if named:
        assert f"the predicate of kernel {made.name}/python:ours ({__file__}:" in told[0]
        assert "took 500.0 ms for aten::relu, and 500.0 ms when asked again" in told[0]
    assert sum(d.calls for d in decisions_of(session, "aten::relu")) == 4
