"""What was decided while somebody looked, and a fallback that nobody was to see."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import flroute
from flroute import FallbackError, Reason, Route
from flroute.testing import assert_no_fallback, capture_decisions
from flroute.vendor import Kernel, host_fallback
from support import COPY, Made, Vendors, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)


def secretive_erf(x: Any) -> Any:
    """A host fallback that nobody is to see."""
    return torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def honest_mul(x: Any, y: Any) -> Any:
    return np.multiply(x, y)


def open_exp(x: Any) -> Any:
    return host_fallback("aten::exp", x)


@pytest.fixture
def planted(vendors: Vendors) -> Made:
    """A vendor with a kernel of each sort."""
    return vendors(
        Kernel("aten::erf", secretive_erf),
        Kernel("aten::mul.Tensor", honest_mul),
        Kernel("aten::exp", open_exp),
        COPY,
    )


def of(op: str, captured: Any) -> list[tuple[str, str, int]]:
    return [(str(d.route), str(d.reason), d.calls) for d in captured.decisions if d.op == op]


class TestCapture:
    def test_counts_only_what_happens_while_open(self) -> None:
        x = torch.ones(2, device="fl")
        x.add(1)
        with capture_decisions() as captured:
            x.add(1)
            x.add(1)
            assert of("aten::add.Tensor", captured) == [("native", "matched", 2)]
            x.add(1)
        x.add(1)
        assert of("aten::add.Tensor", captured) == [("native", "matched", 3)]

    def test_sees_sessions_nested_or_open_before(self) -> None:
        x = torch.ones(2, device="fl")
        with flroute.enable(device="reference") as outer:
            x.add(1)
            with capture_decisions() as captured:
                x.add(1)
                with flroute.enable(device="reference"):
                    x.add(1)
                    with flroute.enable(device="reference") as inner:
                        x.add(1)
                    assert of("aten::add.Tensor", captured) == [("native", "matched", 3)]
            x.add(1)
        assert of("aten::add.Tensor", captured) == [("native", "matched", 3)]
        assert of("aten::add.Tensor", inner) == [("native", "matched", 1)]
        assert of("aten::add.Tensor", outer) == [("native", "matched", 5)]

    def test_nests(self) -> None:
        x = torch.ones(2, device="fl")
        with capture_decisions() as outer:
            x.add(1)
            with capture_decisions() as inner:
                x.add(1)
            x.add(1)
        assert of("aten::add.Tensor", inner) == [("native", "matched", 1)]
        assert of("aten::add.Tensor", outer) == [("native", "matched", 3)]

    def test_names_the_call_of_this_block(self) -> None:
        x = torch.ones(2, device="fl")
        torch.erfinv(x * 0)
        with capture_decisions() as captured:
            torch.erfinv(x * 0)
        (found,) = captured.fallbacks
        assert found.call_site is not None
        assert found.call_site.startswith(__file__)
        with capture_decisions() as again:
            torch.erfinv(x * 0)
        assert again.fallbacks[0].call_site != found.call_site

    def test_leaves_settings_and_counts_as_they_were(self) -> None:
        x = torch.ones(2, device="fl")
        with flroute.enable(device="reference") as session:
            before = session.router.settings
            with capture_decisions():
                assert session.router.settings.watch_kernels
                x.add(1)
            assert session.router.settings == before
            x.add(1)
        assert of("aten::add.Tensor", session) == [("native", "matched", 2)]

    def test_does_not_announce_a_decision_twice(self) -> None:
        x = torch.ones(2, device="fl")
        seen = []

        class Observer:
            @flroute.vendor.hookimpl
            def flroute_decision_taken(self, decision: Any) -> None:
                seen.append(decision.op)

        observer = Observer()
        manager = flroute.registry.load().manager
        manager.register(observer)
        try:
            with flroute.enable(device="reference"):
                x.neg()
                with capture_decisions():
                    x.neg()
        finally:
            manager.unregister(observer)
        assert seen.count("aten::neg") == 1


class TestPlantedFallback:
    """A kernel that lets PyTorch compute on the host is found, wherever it runs."""

    def check(self, captured: Any, made: Made) -> None:
        (found,) = [d for d in captured.fallbacks if d.op == "aten::erf"]
        assert (found.kernel, found.reason, found.calls) == (
            f"{made.name}/python:secretive_erf",
            Reason.IN_KERNEL,
            1,
        )

    def test_in_a_session(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        with capture_decisions() as captured, flroute.enable(device=planted.name):
            torch.erf(x)
        self.check(captured, planted)

    def test_outside(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        with capture_decisions() as captured:
            torch.erf(x)
        self.check(captured, planted)

    def test_in_backward(self, planted: Made) -> None:
        class Erf(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * x

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return torch.erf(gradient)

        x = planted.put(torch.ones(3)).requires_grad_()
        y = Erf.apply(x)
        with capture_decisions() as captured, flroute.enable(device=planted.name):
            y.backward(planted.put(torch.ones(3)))
        self.check(captured, planted)

    def test_under_inference_mode(self, planted: Made) -> None:
        with capture_decisions() as captured, flroute.enable(device=planted.name), torch.inference_mode():
            torch.erf(planted.put(torch.ones(3)))
        self.check(captured, planted)

    def test_in_a_thread(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        with capture_decisions() as captured, flroute.enable(device=planted.name):
            thread = threading.Thread(target=torch.erf, args=(x,))
            thread.start()
            thread.join()
        self.check(captured, planted)

    def test_beside_the_workers_of_a_data_loader(self, planted: Made) -> None:
        loader = DataLoader(TensorDataset(torch.ones(1, 3)), num_workers=1)
        with capture_decisions() as captured:
            for (batch,) in loader:
                torch.erf(planted.put(batch))
        self.check(captured, planted)

    def test_is_refused_under_error(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        session = flroute.enable(device=planted.name, fallback="error", watch_kernels=True)
        with session, pytest.raises(FallbackError, match=r"aten::erf .*secretive_erf"):
            torch.erf(x)

    def test_is_not_seen_when_nobody_watches(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        with flroute.enable(device=planted.name) as session:
            torch.erf(x)
        assert not session.fallbacks

    def test_declared_host_work_is_counted_once(self, planted: Made) -> None:
        x = planted.put(torch.ones(3))
        with capture_decisions() as captured:
            assert torch.equal(torch.exp(x).cpu(), torch.ones(3).exp())
        assert [(d.op, d.reason, d.calls) for d in captured.fallbacks] == [("aten::exp", Reason.IN_KERNEL, 1)]

    def test_draws_from_the_host_generator_are_no_fallback(self) -> None:
        with assert_no_fallback(), flroute.enable(device="reference"):
            torch.manual_seed(0)
            torch.randn(4)
            torch.nn.functional.dropout(torch.ones(8), 0.5)


class TestAssertNoFallback:
    def test_passes_a_block_that_is_native(self) -> None:
        with assert_no_fallback() as captured:
            torch.ones(2, device="fl").add(1)
        assert all(d.route is not Route.FALLBACK for d in captured.decisions)

    def test_names_op_reason_shapes_call_and_remedy(self) -> None:
        x = torch.zeros(2, 3, device="fl")
        with pytest.raises(AssertionError) as caught, assert_no_fallback():
            torch.erfinv(x)
        message = str(caught.value)
        for part in (
            "aten::erfinv on fl:0, once: no_kernel",
            "float32 [2, 3]",
            "test_testing.py:",
            "Register a kernel",
        ):
            assert part in message

    @pytest.mark.parametrize("allow", ["aten::erfinv", "aten::erf*", "aten::*"])
    def test_allows_ops_and_globs(self, allow: str) -> None:
        with assert_no_fallback(allow=[allow]) as captured:
            torch.erfinv(torch.zeros(2, device="fl"))
        assert len(captured.fallbacks) == 1

    def test_allows_nothing_else(self) -> None:
        x = torch.zeros(2, device="fl")
        with pytest.raises(AssertionError, match="hypot"), assert_no_fallback(allow=["aten::erfinv"]):
            torch.hypot(x, x).erfinv()

    def test_lets_the_block_s_own_error_through(self) -> None:
        x = torch.zeros(2, device="fl")
        with pytest.raises(ZeroDivisionError), assert_no_fallback():
            x.erfinv().add_(1 / 0)
