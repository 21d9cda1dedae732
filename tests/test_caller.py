"""Each decision says who made its first call: the user's line, the module, and the phase; and there are so many of them."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import flroute
from flroute.report import Report
from flroute.routing import expected, hot_path, tallies
from flroute.routing.accounting import Counts, DecisionLog
from flroute.routing.tallies import Choice
from flroute.vendor import Kernel
from flroute.vocabulary import Decision, Phase, Reason, Route
from support import Vendors, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)


class Attention(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.project(x), -1) @ x.mT


class Encoder(torch.nn.Module):
    """Layers of different widths, so that their signatures differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.ModuleList(torch.nn.ModuleDict({"attention": Attention(w)}) for w in (3, 4, 5))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        parts = [layer["attention"](x).sum() for layer, x in zip(self.layer, inputs, strict=True)]
        return torch.stack(parts).exp()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.encoder(*inputs).tanh()


@pytest.fixture
def step() -> Any:
    """A training step of the model."""
    torch.manual_seed(0)
    model = Model().to("fl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    inputs = [torch.randn(2, width).to("fl") for width in (3, 4, 5)]

    def run() -> None:
        optimizer.zero_grad()
        model(*inputs).sum().backward()
        optimizer.step()

    return run


def places(session: flroute.Session, op: str) -> Counter[tuple[str | None, str]]:
    found: Counter[tuple[str | None, str]] = Counter()
    for decision in decisions_of(session, op):
        found[decision.module, str(decision.phase)] += decision.calls
    return found


def test_modules_are_named_by_their_path(step: Any) -> None:
    with flroute.enable("reference") as session:
        step()
    assert places(session, "aten::_softmax") == {
        (f"encoder.layer.{i}.attention", "forward"): 1 for i in range(3)
    }
    assert set(places(session, "aten::addmm")) == {
        (f"encoder.layer.{i}.attention.project", "forward") for i in range(3)
    }
    assert places(session, "aten::exp") == {("encoder", "forward"): 1}
    assert places(session, "aten::tanh") == {("Model", "forward"): 1}, "the outermost has no path"


def test_phases_are_told_apart(step: Any) -> None:
    with flroute.enable("reference") as session:
        step()
    assert {phase for _, phase in places(session, "aten::_softmax_backward_data")} == {"backward"}
    assert {
        place for op in ("aten::add_.Tensor", "aten::_foreach_add_.List") for place in places(session, op)
    } == {(None, "optimizer")}


def test_an_optimizer_that_calls_a_module_goes_forward_there() -> None:
    module = torch.nn.Linear(3, 1).to("fl")
    optimizer, x = torch.optim.LBFGS(module.parameters(), max_iter=1), torch.ones(2, 3).to("fl")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module(x).sum()
        loss.backward()
        return loss

    with flroute.enable("reference") as session:
        optimizer.step(closure)
    assert places(session, "aten::addmm") == {("Linear", "forward"): 1}
    assert all(phase == "backward" for _, phase in places(session, "aten::mm"))


def test_a_module_that_moves_is_named_anew() -> None:
    root = torch.nn.Sequential(torch.nn.ReLU()).to("fl")
    with flroute.enable("reference", default_device=False) as session:
        root(torch.ones(2).to("fl"))
        root.insert(0, torch.nn.Tanh())
        root(torch.ones(3).to("fl"))
    assert places(session, "aten::relu") == {("0", "forward"): 1, ("1", "forward"): 1}


def test_a_module_that_is_no_child_goes_by_the_nearest_that_is() -> None:
    hidden = [torch.nn.ReLU()]

    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return hidden[0](x)  # type: ignore[no-any-return]

    with flroute.enable("reference") as session:
        Root()(torch.ones(2))
    assert places(session, "aten::relu") == {("Root", "forward"): 1}


def test_signatures_are_decisions_of_their_own() -> None:
    with flroute.enable("reference", fallback="allow") as session:
        for shape in ((2,), (3, 4), (2,)):
            for op in (torch.relu, torch.erfinv, torch.t):
                op(torch.zeros(shape))
    for op in ("aten::relu", "aten::erfinv", "aten::t"):
        assert {d.shapes: d.calls for d in decisions_of(session, op)} == {((2,),): 2, ((3, 4),): 1}


def test_a_session_may_count_every_call_for_its_module() -> None:
    """Without, a second module with the same signature is counted for the first."""
    module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)]).to("fl")
    x = torch.ones(4, 4).to("fl")
    found = {}
    for modules in (False, True):
        with flroute.enable("reference", modules=modules, default_device=False) as session:
            for _ in range(5):
                module(x).sum().backward()
        found[modules] = places(session, "aten::addmm")
        assert sum(places(session, "aten::t").values()) > 15
    assert found == {
        False: {("0", "forward"): 15},
        True: {("0", "forward"): 5, ("1", "forward"): 5, ("2", "forward"): 5},
    }


# -- how many there are ----------------------------------------------------------------------------------------------


def count(log: DecisionLog, op: str, shapes: Any) -> None:
    counts = Counts(log, Choice(op, Route.NATIVE, "acme/asm:f", "fl:0", Reason.MATCHED), ("float32",))
    for shape in shapes:
        counts((shape,)).tick()


def test_signatures_of_an_op_are_capped_and_every_call_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_SIGNATURES", 10)
    announced: list[Decision] = []
    log = DecisionLog(warn_on_fallback=False, observer=announced.append)
    count(log, "aten::exp", [(n,) for n in (*range(25), *range(25))])
    count(log, "aten::sin", [(n,) for n in range(5)])
    found = log.decisions()
    (rest,) = [d for d in found if d.rest]
    assert (rest.op, rest.calls, rest.shapes, rest.dtypes) == ("aten::exp", 30, (), ())
    assert (rest.kernel, rest.route) == ("acme/asm:f", "native")
    assert [d.calls for d in found if not d.rest] == [2] * 10 + [1] * 5
    assert len(announced) == len(found) == 16


def test_the_cap_holds_over_inner_sessions_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_SIGNATURES", 10)
    announced: list[Decision] = []
    outer = DecisionLog(warn_on_fallback=False, observer=announced.append)
    for start in range(0, 100, 5):
        inner = DecisionLog(warn_on_fallback=False)
        count(inner, "aten::exp", [(n,) for n in range(start, start + 5)])
        outer.absorb(inner)
        outer.turn_page()
        count(outer, "aten::exp", [(n,) for n in range(start, start + 5)])
        outer.forget_pages()
    assert len(outer.decisions()) == 11
    assert sum(d.calls for d in outer.decisions()) == 200
    assert len(announced) == 11


def test_a_hundred_thousand_signatures_keep_memory_flat() -> None:
    log = DecisionLog(warn_on_fallback=False)
    count(log, "aten::exp", [(n,) for n in range(2000)])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        count(log, "aten::exp", ((n,) for n in range(2000, 102_000)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000, "bytes"
    assert sum(d.calls for d in log.decisions()) == 102_000


@pytest.mark.slow
@pytest.mark.parametrize(("modules", "shapes"), [(False, 10_000_000), (True, 1_000_000)])
def test_millions_of_shapes_do_not_grow_the_log(modules: bool, shapes: int) -> None:
    """What a session asks of its log for each call, without the calls: these would take hours."""
    log = DecisionLog(warn_on_fallback=False, by_module=modules)
    count(log, "aten::exp", ((n,) for n in range(100_000)))
    gc.collect()
    before = resident_bytes()
    count(log, "aten::exp", ((n,) for n in range(100_000, shapes)))
    gc.collect()
    assert resident_bytes() - before < 2**23, "a few bytes a shape at most: no tally of its own"
    decisions = log.decisions()
    assert len(decisions) == tallies.MAX_SIGNATURES + 1
    assert sum(d.calls for d in decisions) == shapes
    report = Report(decisions, device="fl:0")
    assert report.capped == ["aten::exp"]
    assert f"signatures beyond the first {tallies.MAX_SIGNATURES} of an op are added up: aten::exp" in str(
        report
    )


def resident_bytes() -> int:
    """What the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


CALLS_BY_ROUTE = {
    "native": ("aten::relu", torch.relu),
    "fallback": ("aten::erfinv", torch.erfinv),
    "view": ("aten::t", torch.t),
    "copy": ("aten::_copy_from", lambda x: x.to("cpu")),
}


@pytest.mark.slow
@pytest.mark.parametrize("route", CALLS_BY_ROUTE)
def test_calls_with_thousands_of_shapes_keep_memory_flat(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches along the way hold some thousand signatures each: with smaller ones that shows sooner."""
    monkeypatch.setattr(hot_path, "MAX_ENTRIES", 256)
    monkeypatch.setattr(expected, "MAX_SIGNATURES", 256)
    op, function = CALLS_BY_ROUTE[route]

    def call(first: int, last: int) -> None:
        for n in range(first, last):
            function(torch.empty((0, n), device="fl"))

    with flroute.enable("reference", fallback="allow", default_device=False) as session:
        call(1, 2000)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            call(2000, 10_000)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 800_000, (
        "a hundred bytes a shape: caches come and go, and nothing is kept of each"
    )
    found = decisions_of(session, op)
    assert {str(d.route) for d in found} == {route}
    assert sum(d.calls for d in found) == 9999
    assert len(found) == tallies.MAX_SIGNATURES + 1
    assert op in session.report().capped


def test_a_hundred_thousand_calls_of_one_op_keep_memory_flat() -> None:
    x = torch.ones(4).to("fl")
    with flroute.enable("reference", default_device=False) as session:
        torch.add(x, x)
        torch.add(x, x)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(100_000):
                torch.add(x, x)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 100_000, "a byte a call"
    assert [d.calls for d in decisions_of(session, "aten::add.Tensor")] == [100_002]


def test_host_work_in_a_kernel_is_the_kernels_in_each_signature(vendors: Vendors) -> None:
    from flroute.vendor import host_fallback

    def erfinv(x: Any) -> Any:
        return host_fallback("aten::erfinv", x)

    made = vendors(Kernel("aten::erfinv", named("erfinv", erfinv)))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        for size in (2, 3, 3):
            torch.erfinv(made.put(torch.zeros(size)))
    inner = [d for d in decisions_of(session, "aten::erfinv") if d.reason is Reason.IN_KERNEL]
    assert {d.shapes: d.calls for d in inner} == {((2,),): 1, ((3,),): 2}
    assert {d.kernel for d in inner} == {f"{made.name}/python:erfinv"}
    assert {d.phase for d in inner} == {Phase.FORWARD}
