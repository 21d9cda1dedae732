"""Every call is counted, once, in the decision it belongs to; and what is written to the trace can be read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import flroute
from flroute.vendor import Kernel
from support import Vendors, decision_of, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)


class Counting(TorchDispatchMode):
    """Counts the aten calls that a session's mode sees: it sits right above it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def counts(session: flroute.Session, ops: set[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for decision in session.decisions:
        if decision.op in ops:
            found[decision.op] += decision.calls
    return dict(found)


def test_calls_are_counted_exactly_in_a_training_step() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("fl")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = torch.randn(5, 8).to("fl"), torch.randint(4, (5,)).to("fl")
    with flroute.enable("reference", fallback="allow") as session, Counting() as seen:
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    computing = {
        "aten::addmm", "aten::relu", "aten::mm", "aten::threshold_backward", "aten::_log_softmax",
        "aten::nll_loss_forward", "aten::nll_loss_backward", "aten::_log_softmax_backward_data", "aten::t",
        "aten::sum.dim_IntList", "aten::_foreach_add_.List", "aten::detach",
    }  # fmt: skip
    wanted = {op: n for op, n in seen.calls.items() if op in computing}
    assert len(wanted) >= 10
    assert counts(session, computing) == wanted


CALLS = {
    "native": ("aten::relu", torch.relu),
    "two tensors": ("aten::add.Tensor", lambda x: torch.add(x, x)),
    "scalar": ("aten::add.Tensor", lambda x: x + 2),
    "fallback": ("aten::erfinv", torch.erfinv),
    "in place": ("aten::relu_", lambda x: x.relu_()),
    "view": ("aten::alias", torch.ops.aten.alias),
    "copy": ("aten::copy_", lambda x: x.copy_(x.t() if x.dim() == 2 and x.shape[0] == x.shape[1] else x + 0)),
    "reduction": ("aten::sum", torch.sum),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([k for k in CALLS if k != "copy"]), st.integers(1, 4),
            st.sampled_from([(2, 2), (3,), ()]), st.sampled_from([torch.float32, torch.float64]),
        ),
        max_size=15,
    ),
    st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_the_calls_made_are_the_calls_counted(calls: list[Any], timing: bool, debug: bool) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    with flroute.enable(
        "reference", fallback="allow", default_device=False, timing=timing, debug=debug
    ) as session:
        for what, times, shape, dtype in calls:
            op, call = CALLS[what]
            x = torch.zeros(shape, dtype=dtype).to("fl")
            for _ in range(times):
                call(x)
            if op != "aten::alias":  # views are counted per device, whatever their dtype
                expected[op, str(dtype).removeprefix("torch.")] += times
    got: Counter[tuple[str, str]] = Counter()
    ops = {op for op, _ in expected}
    for decision in session.decisions:
        if decision.op in ops and decision.route != "host":
            got[decision.op, decision.dtypes[0]] += decision.calls
    assert got == expected


def test_views_are_counted_with_the_dtype_they_have() -> None:
    with flroute.enable("reference", default_device=False) as session:
        for dtype in (torch.float32, torch.float32, torch.int64):
            torch.zeros(2, 3, dtype=dtype).to("fl").t()
    views = decisions_of(session, "aten::t")
    assert {d.dtypes: d.calls for d in views} == {("float32",): 2, ("int64",): 1}
    assert all((d.route, d.reason, d.device) == ("view", "metadata", "fl:0") for d in views)


def test_a_call_that_raised_is_not_counted(vendors: Vendors) -> None:
    def picky(x: Any) -> Any:
        if x.sum() < 0:
            raise ArithmeticError("negative")
        return -x

    made = vendors(Kernel("aten::neg", picky))
    with flroute.enable(made.name, default_device=False) as session:
        for value in (1.0, 1.0, -1.0, 1.0, -1.0):
            x = made.put(torch.tensor([value]))
            if value < 0:
                with pytest.raises(ArithmeticError):
                    torch.neg(x)
            else:
                torch.neg(x)
    assert decision_of(session, "aten::neg").calls == 3


def test_one_decision_per_device_and_dtype() -> None:
    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        for device in ("fl:0", "fl:1", "fl:2"):
            for dtype in (torch.float32, torch.float64):
                x = torch.ones(2, dtype=dtype).to(device)
                torch.relu(x)
                torch.relu(x)
    found = {(d.device, d.dtypes): (str(d.route), d.calls) for d in decisions_of(session, "aten::relu")}
    assert found == {
        ("fl:0", ("float32",)): ("native", 2), ("fl:0", ("float64",)): ("native", 2),
        ("fl:1", ("float32",)): ("native", 2), ("fl:1", ("float64",)): ("native", 2),
        ("fl:2", ("float32",)): ("native", 2), ("fl:2", ("float64",)): ("fallback", 2),
    }  # fmt: skip


def test_host_calls_are_host_calls() -> None:
    with flroute.enable("reference", default_device=False) as session:
        torch.relu(torch.ones(2))
    (decision,) = [d for d in session.decisions if d.op == "aten::relu"]
    assert (decision.route, decision.device, decision.kernel, decision.calls) == ("host", "cpu", None, 1)


def test_transfers_are_copies_with_their_bytes() -> None:
    with flroute.enable("reference", default_device=False) as session:
        x = torch.ones(10).to("fl:0")
        x.to("fl:1")
        x.cpu()
        x[3].item()
    copies = [d for d in session.decisions if d.route == "copy"]
    moved = {(d.device, d.op): (d.bytes_to_host, d.bytes_to_device, d.calls) for d in copies}
    assert moved["cpu->fl:0", "aten::_copy_from"] == (0, 40, 1)
    assert moved["fl:0->cpu", "aten::_copy_from"] == (40, 0, 1)
    assert moved["fl:0->fl:1", "aten::_copy_from"] == (0, 0, 1)
    assert moved["fl:0->cpu", "aten::_local_scalar_dense"] == (4, 0, 1)
    assert all(d.reason == "transfer" for d in copies)
    assert (session.report().bytes_to_device, session.report().bytes_to_host) == (40, 44)


def test_the_call_site_is_the_users() -> None:
    with flroute.enable("reference", default_device=False) as session:
        x = torch.ones(2).to("fl")
        here = _line() + 1
        torch.relu(x)
    assert decision_of(session, "aten::relu").call_site == f"{__file__}:{here}"


def _line() -> int:
    import sys

    return sys._getframe(1).f_lineno


def test_decisions_are_plain_values() -> None:
    with flroute.enable("reference") as session:
        torch.relu(torch.ones(2))
    decision = decision_of(session, "aten::relu")
    assert decision.route == "native"
    assert f"{decision.route}" == "native"
    assert decision.reason == "matched"
    assert (decision.seconds, decision.bytes_to_host, decision.bytes_to_device) == (None, 0, 0)
    with pytest.raises(AttributeError):
        decision.calls = 7  # type: ignore[misc]


def test_timing_gives_seconds() -> None:
    with flroute.enable("reference", fallback="allow", timing=True) as session:
        x = torch.ones(64, 64)
        for _ in range(3):
            torch.relu(x @ x)
            torch.erfinv(x)
    for op in ("aten::relu", "aten::mm", "aten::erfinv"):
        assert decision_of(session, op).seconds > 0  # type: ignore[operator]
    assert session.report().totals["native"].seconds > 0  # type: ignore[index,operator]


def test_timing_measures_the_kernel(vendors: Vendors) -> None:
    import time

    def slow(x: Any) -> Any:
        time.sleep(0.02)
        return -x

    made = vendors(
        Kernel("aten::neg", slow), Kernel("aten::abs", named("quick", lambda x: np.maximum(x, -x)))
    )
    with flroute.enable(made.name, timing=True, default_device=False) as session:
        x = made.put(torch.ones(2))
        for _ in range(3):
            torch.neg(x)
    assert decision_of(session, "aten::neg").seconds >= 0.06  # type: ignore[operator]


def test_without_timing_there_are_no_seconds() -> None:
    with flroute.enable("reference") as session:
        torch.relu(torch.ones(2))
    assert all(d.seconds is None for d in session.decisions)


# -- the trace -----------------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    """Every line, parsed."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_trace_has_a_header_decisions_and_totals(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    with flroute.enable("reference", fallback="allow", trace=path) as session:
        for _ in range(3):
            torch.relu(torch.ones(2, 2))
        torch.erfinv(torch.zeros(2))
        early = read(path)
    lines = read(path)
    assert [line["kind"] for line in early] == ["header"] + ["decision"] * (len(early) - 1), (
        "written as it happens"
    )
    header = lines[0]
    assert (header["kind"], header["schema_version"], header["torch"]) == ("header", 1, torch.__version__)
    by_kind = {
        kind: [line for line in lines if line["kind"] == kind] for kind in ("header", "decision", "total")
    }
    assert len(by_kind["header"]) == 1
    assert [line["op"] for line in by_kind["decision"]] == [d.op for d in session.decisions]
    totals = {line["op"]: line for line in by_kind["total"]}
    assert totals["aten::relu"]["calls"] == 3
    assert (totals["aten::relu"]["route"], totals["aten::relu"]["kernel"]) == (
        "native",
        "reference/numpy:relu",
    )
    assert totals["aten::relu"]["shapes"] == [[2, 2]]
    assert totals["aten::erfinv"]["route"] == "fallback"
    assert {line["op"]: line["calls"] for line in by_kind["total"]} == {
        d.op: d.calls for d in session.decisions
    }


def test_the_trace_of_a_decorated_function_has_one_header_per_call(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"

    @flroute.enable("reference", trace=path)
    def work() -> None:
        torch.relu(torch.ones(2))

    work()
    work()
    lines = read(path)
    assert [line["kind"] for line in lines].count("header") == 2
    assert [line["calls"] for line in lines if line["kind"] == "total" and line["op"] == "aten::relu"] == [
        1,
        1,
    ]


def test_a_session_that_is_never_opened_writes_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    flroute.enable("reference", trace=path)
    assert not path.exists()


def test_the_trace_is_whole_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with pytest.raises(ValueError, match="'x'"), flroute.enable("reference", trace=path):
        int(str(torch.relu(torch.ones(2)).dtype) and "x")
    assert [
        line["calls"] for line in read(path) if line["kind"] == "total" and line["op"] == "aten::relu"
    ] == [1]


def test_odd_details_are_valid_json(vendors: Vendors, tmp_path: Path) -> None:
    made = vendors(
        Kernel("aten::neg", named("neg", lambda x: -x), when=lambda x: 'said "no"\n\u2028\x00 ünïcode')
    )
    path = tmp_path / "trace.jsonl"
    with flroute.enable(made.name, fallback="allow", trace=path, default_device=False):
        torch.neg(made.put(torch.ones(2)))
    (line,) = [
        line
        for line in read(path)[1:]
        if (line["kind"], line["op"], line["route"]) == ("total", "aten::neg", "fallback")
    ]
    assert line["rejected"] == [
        {
            "kernel": f"{made.name}/python:neg",
            "reason": "predicate",
            "detail": 'said "no"\n\u2028\x00 ünïcode',
        }
    ]


def test_decisions_of_calls_outside_sessions_are_the_process_routers() -> None:
    from flroute.routers import process_router

    def relus() -> int:
        return sum(
            d.calls for d in process_router().log.decisions() if d.op == "aten::relu" and d.device == "fl:1"
        )

    x = torch.ones(2).to("fl:1")
    before = relus()
    torch.relu(x)
    torch.relu(x)
    assert relus() == before + 2
    with flroute.enable("reference"):
        torch.relu(x)
    assert relus() == before + 2
