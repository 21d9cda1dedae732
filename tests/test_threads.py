"""Threads: the policy holds in all of them, ``attach`` gives the whole session, counters are exact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute import routers, routing_mode
from flroute.vendor import Kernel, hookimpl
from support import Vendors, decision_of, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

THREADS, CALLS = 4, 400


def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or raises, in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=60)


def hammer(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """``work(i)`` in threads that start at once."""
    barrier = threading.Barrier(threads)

    def start(i: int) -> Any:
        barrier.wait(timeout=60)
        return work(i)

    with ThreadPoolExecutor(threads) as pool:
        return [future.result(timeout=120) for future in [pool.submit(start, i) for i in range(threads)]]


def test_error_holds_in_a_worker_thread() -> None:
    x = torch.zeros(2, device="fl")
    with flroute.enable("reference", fallback="error"):
        with pytest.raises(flroute.FallbackError):
            in_thread(lambda: torch.erfinv(x))
        assert in_thread(lambda: torch.relu(x).tolist()) == [0, 0]
    assert in_thread(lambda: torch.erfinv(x).tolist()) == [0, 0], "and ends with the session"


def test_error_holds_in_a_pool_that_was_there_before() -> None:
    """As in DataParallel: threads that know nothing of the session run replicas."""
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(3, 3)
    ).to("fl")
    inputs = [torch.randn(2, 3, device="fl") for _ in range(6)]
    with ThreadPoolExecutor(3) as pool:
        pool.submit(lambda: None).result()
        with flroute.enable("reference", fallback="error", order={"aten::gelu": ["host"]}):
            futures = [pool.submit(module, x) for x in inputs]
            assert all(isinstance(future.exception(timeout=60), flroute.FallbackError) for future in futures)
        results = [future.result(timeout=60) for future in [pool.submit(module, x) for x in inputs]]
    assert all(torch.equal(r, module(x)) for r, x in zip(results, inputs, strict=True))


def test_error_holds_in_backward_started_in_a_thread() -> None:
    leaf = torch.full((3,), 0.5, device="fl:1", requires_grad=True)
    loss = torch.erfinv(leaf).sum()
    with (
        flroute.enable(
            "reference", fallback="error", order={"aten::mul.Tensor": ["host"], "aten::exp": ["host"]}
        ),
        pytest.raises(flroute.FallbackError),
    ):
        in_thread(loss.backward)
    assert leaf.grad is None


def test_work_of_a_thread_is_in_the_innermost_open_session() -> None:
    x = torch.zeros(2, device="fl")
    with flroute.enable("reference", fallback="allow") as outer:
        with flroute.enable("reference", fallback="allow") as inner:
            in_thread(lambda: torch.erfinv(x))
        in_thread(lambda: torch.relu(x))
    assert [d.op for d in inner.fallbacks] == ["aten::erfinv"]
    assert not decisions_of(inner, "aten::relu")
    assert decision_of(outer, "aten::relu").calls == 1


def test_a_thread_has_neither_mode_nor_default_device_unless_it_attaches() -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((torch.ones(1).device, torch.ones(1, device="fl").device, flroute.current_device()))

    with flroute.enable("reference:1", fallback="allow") as session:

        def attached() -> None:
            with session.attach():
                look()
            look()

        in_thread(look)
        in_thread(attached)
    host, first, second = torch.device("cpu"), torch.device("fl:0"), torch.device("fl:1")
    assert seen == [(host, first, first), (second, second, second), (host, first, first)]


def test_attach_gives_the_mode(vendors: Vendors) -> None:
    with flroute.enable("reference:1", fallback="error") as session:

        def work() -> Any:
            with session.attach():
                assert routing_mode._thread.modes[-1].router is session.router
                with pytest.raises(flroute.FallbackError):
                    torch.erfinv(torch.zeros(1))
                return torch.relu(torch.ones(1)).device

        assert in_thread(work) == torch.device("fl:1")
    assert decision_of(session, "aten::relu").calls == 1


def test_attach_ends_on_an_error() -> None:
    with flroute.enable("reference:1") as session:

        def work() -> Any:
            with pytest.raises(ValueError, match="mine"), session.attach():
                raise ValueError("mine")
            return torch.ones(1).device, flroute.current_device(), list(routing_mode._thread.modes)

        assert in_thread(work) == (torch.device("cpu"), torch.device("fl:0"), [])


def test_attach_needs_an_open_session() -> None:
    session = flroute.enable("reference")
    with pytest.raises(flroute.FlrouteError, match="open session"):
        session.attach()
    with session:
        pass
    with pytest.raises(flroute.FlrouteError, match="open session"):
        session.attach()


@pytest.mark.parametrize("attach", [False, True], ids=["policy only", "attached"])
@pytest.mark.parametrize("op", ["native", "strided", "fallback", "in place", "view"])
def test_counters_are_exact_under_four_threads(op: str, attach: bool) -> None:
    x = torch.full((2, 2), 0.5, device="fl")
    own = [torch.full((2, 2), 0.5, device="fl") for _ in range(THREADS)]
    calls: dict[str, tuple[str, Callable[[int], Any]]] = {
        "native": ("aten::relu", lambda i: torch.relu(x)),
        "strided": ("aten::add.Tensor", lambda i: torch.add(x.t(), x)),
        "fallback": ("aten::erfinv", lambda i: torch.erfinv(x)),
        "in place": ("aten::relu_", lambda i: own[i].relu_()),
        "view": ("aten::view", lambda i: x.view(4)),
    }
    name, call = calls[op]
    with flroute.enable("reference", fallback="allow", default_device=False) as session:

        def work(i: int) -> None:
            if attach:
                with session.attach():
                    for _ in range(CALLS):
                        call(i)
            else:
                for _ in range(CALLS):
                    call(i)

        hammer(work)
    assert sum(d.calls for d in decisions_of(session, name)) == THREADS * CALLS
    assert len(decisions_of(session, name)) == 1


def test_bytes_are_exact_under_four_threads() -> None:
    device = flroute.device("opaque")
    xs = [torch.zeros(16).to(device) for _ in range(THREADS)]
    with flroute.enable("opaque", fallback="allow", default_device=False) as session:
        hammer(lambda i: [torch.erfinv(xs[i]) for _ in range(100)])
    decision = decision_of(session, "aten::erfinv")
    assert (decision.calls, decision.bytes_to_host, decision.bytes_to_device) == (400, 400 * 64, 400 * 64)


def test_seconds_are_complete_under_four_threads(vendors: Vendors) -> None:
    import time

    def slow(x: Any) -> Any:
        time.sleep(0.005)
        return -x

    made = vendors(Kernel("aten::neg", slow))
    x = made.put(torch.ones(2))
    with flroute.enable(made.name, timing=True, default_device=False) as session:
        hammer(lambda i: [torch.neg(x) for _ in range(10)])
    decision = decision_of(session, "aten::neg")
    assert decision.calls == 40
    assert decision.seconds is not None
    assert decision.seconds >= 40 * 0.005


def test_a_decision_first_taken_by_four_threads_at_once_is_one(vendors: Vendors) -> None:
    seen: list[str] = []

    class Watches:
        @hookimpl
        def flroute_decision_taken(self, decision: flroute.Decision) -> None:
            seen.append(decision.op)

    vendors.register(Watches())
    x = torch.ones(2, device="fl")
    ops = [torch.relu, torch.abs, torch.exp, torch.neg, torch.sqrt, torch.erfinv, torch.lgamma, torch.digamma]
    with flroute.enable("reference", fallback="allow", default_device=False) as session:

        def work(i: int) -> None:
            with session.attach():
                for op in ops:
                    op(x)

        hammer(work)
    for name in ("relu", "abs", "exp", "neg", "sqrt", "erfinv", "lgamma", "digamma"):
        assert decision_of(session, f"aten::{name}").calls == THREADS
        assert seen.count(f"aten::{name}") == 1


def test_an_observer_may_compute_on_the_device(vendors: Vendors) -> None:
    class Computes:
        @hookimpl
        def flroute_decision_taken(self, decision: flroute.Decision) -> None:
            if decision.op == "aten::relu":
                computed.append(torch.neg(torch.ones(2, device="fl")).tolist())

    computed: list[list[float]] = []
    vendors.register(Computes())
    done = threading.Event()

    def work() -> None:
        with flroute.enable("reference", fallback="allow"):
            torch.relu(torch.ones(2))
        done.set()

    threading.Thread(target=work, daemon=True).start()
    if not done.wait(timeout=5):
        routers._open.clear()  # the thread is stuck for good; let the other tests live
        pytest.fail("an observer that computes on the device waits for its own lock")
    assert computed[0] == [-1.0, -1.0]


def test_two_sessions_in_two_threads_keep_their_own_decisions() -> None:
    both_open, both_done = threading.Barrier(2), threading.Barrier(2)
    x = torch.zeros(2, device="fl")

    def work(i: int) -> flroute.Session:
        with flroute.enable(f"reference:{i}", fallback="allow", default_device=False) as session:
            both_open.wait(timeout=60)
            for _ in range(10 + i):
                (torch.erfinv if i else torch.relu)(x)
            both_done.wait(timeout=60)
        return session

    first, second = hammer(work, 2)
    assert [(d.op, d.calls) for d in first.decisions] == [("aten::relu", 10)]
    assert [(d.op, d.calls) for d in second.decisions] == [("aten::erfinv", 11)]


def test_a_session_of_another_thread_does_not_tell_ours() -> None:
    x = torch.zeros(2, device="fl")

    def work() -> flroute.Session:
        with flroute.enable("reference", fallback="allow") as inner:
            torch.erfinv(x)
        return inner

    with flroute.enable("reference", fallback="allow", default_device=False) as outer:
        torch.relu(x)
        inner = in_thread(work)
    assert [d.op for d in inner.fallbacks] == ["aten::erfinv"]
    assert [d.op for d in outer.decisions] == ["aten::relu"]


def test_policies_of_two_threads_do_not_mix() -> None:
    """A thread with a session of its own keeps to it, whatever session was opened last."""
    x = torch.zeros(2, device="fl")
    strict_open, lax_open = threading.Event(), threading.Event()

    def strict() -> str:
        with flroute.enable("reference", fallback="error"):
            strict_open.set()
            assert lax_open.wait(timeout=60)
            try:
                torch.erfinv(x)
            except flroute.FallbackError:
                return "raised"
        return "passed"

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(strict)
        assert strict_open.wait(timeout=60)
        with flroute.enable("reference", fallback="allow"):
            lax_open.set()
            assert future.result(timeout=60) == "raised"
            assert torch.erfinv(x).tolist() == [0, 0]


def test_kernels_of_four_threads_do_not_mix(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::add.Tensor", named("add", lambda a, b, *, alpha=1: a + np.float32(alpha) * b))
    )

    def work(i: int) -> bool:
        with flroute.enable(made.name, fallback="error", default_device=False):
            x = made.put(torch.full((3,), float(i)))
            return all(torch.add(x, x).tolist() == [2.0 * i] * 3 for _ in range(50))

    assert hammer(work) == [True] * THREADS


def test_the_current_device_is_the_threads_own() -> None:
    with torch.fl.device(1):
        assert in_thread(torch.fl.current_device) == 0
        assert torch.fl.current_device() == 1
