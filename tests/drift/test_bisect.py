"""``flroute.bisect`` names the ops whose kernels spoil a number, by the number alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute.drift.bisect.bisect import grouped
from flroute.vendor import Kernel
from planted import FAULTS, Fault, Plant, models, planting
from support import COPY, Made, Vendors, named, throw_away_vendors

plant = pytest.fixture(planting)
vendors = pytest.fixture(throw_away_vendors)

AT_ONCE = ("wrong_epsilon", "stale_running_mean", "wrong_scale", "epsilon_under_the_root")
"""Faults that are looked for in every run of the tests; the others take minutes together."""


def bisect_planted(plant: Plant, *faults: str) -> flroute.Bisection:
    """By the checksum of a model's logits after three steps of training."""
    device, model = plant(*faults), FAULTS[faults[0]].model
    return flroute.bisect(
        lambda: models.outcome(model, device)["checksum"],
        5e-6, relative=True, progress=False, device="faulty", default_device=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.name, marks=() if f.name in AT_ONCE else pytest.mark.slow)
        for f in FAULTS.values()
    ],
)
def test_a_single_fault_is_named_by_the_metric_alone(plant: Plant, fault: Fault) -> None:
    found = bisect_planted(plant, fault.name)
    assert found.ops == (fault.called,)
    assert not found.together_with
    assert found.runs <= 2 * log2(found.suspects) + 6


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(("missing_bias", "float16_accumulation"), id="forward and backward"),
        pytest.param(("dropped_padding", "momentum_is_forgotten"), id="forward and optimizer", marks=pytest.mark.slow),
        pytest.param(("leaky_gradient", "average_gradient_is_not_shared"), id="both backward", marks=pytest.mark.slow),
        pytest.param(("swapped_order", "rsqrt_in_half_precision"), id="one large, one small", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_of_a_pair_where_each_suffices_to_spoil_the_metric_both_are_named(
    plant: Plant, pair: tuple[str, str]
) -> None:
    found = bisect_planted(plant, *pair)
    assert set(found.ops) == {FAULTS[name].called for name in pair}
    assert not found.together_with


# -- a vendor of seven kernels ------------------------------------------------------------------------------------


def sum_all(x: Any, *, dtype: Any = None) -> Any:
    return np.sum(x, dtype=x.dtype)


def mean_all(x: Any, *, dtype: Any = None) -> Any:
    return np.mean(x, dtype=x.dtype)


def mean_dim(x: Any, dim: Any, keepdim: Any = False, *, dtype: Any = None) -> Any:
    return np.mean(x, tuple(dim) or None, keepdims=keepdim, dtype=x.dtype)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return x @ weight.T + (0 if bias is None else bias)


def addmm(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return beta * bias + alpha * (x @ y)


RIGHT: dict[str, Callable[..., Any]] = {
    "aten::exp": lambda x: np.exp(x),
    "aten::tanh": lambda x: np.tanh(x),
    "aten::neg": lambda x: -x,
    "aten::sqrt": lambda x: np.sqrt(x),
    "aten::sum": sum_all,
    "aten::mean": mean_all,
    "aten::mean.dim": mean_dim,
}


@pytest.fixture
def vendor_with(vendors: Vendors) -> Callable[..., Made]:
    """A vendor whose kernels are right but for those given, by op."""

    def make(wrong: dict[str, Callable[..., Any]] | None = None, *more: Kernel) -> Made:
        kernels = {**RIGHT, **(wrong or {})}
        functions = [Kernel(op, named(f"kernel_{at}", f)) for at, (op, f) in enumerate(kernels.items())]
        return vendors(COPY, *functions, *more)

    return make


def number() -> torch.Tensor:
    """Each of those ops once."""
    x = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
    return x.exp().tanh().neg().exp().sqrt().mean(1).mean() + x.sum()


def bisected(made: Made, metric: Callable[[], Any] = number, **options: Any) -> flroute.Bisection:
    return flroute.bisect(metric, 1e-5, device=made.name, progress=False, **options)


@pytest.mark.parametrize("op", RIGHT)
def test_each_op_is_named_and_no_overload_beside_it(vendor_with: Callable[..., Made], op: str) -> None:
    right = RIGHT[op]
    found = bisected(
        vendor_with({op: _as(right, lambda *args, **more: right(*args, **more) * np.float32(1.01))})
    )
    assert found.ops == (op,)
    assert found.suspects == len(RIGHT)


def _as(right: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
    wrong.__wrapped__ = right  # type: ignore[attr-defined] -- the signature is what registration checks
    return wrong


def test_what_was_found_can_be_pasted_and_cures(vendor_with: Callable[..., Made]) -> None:
    made = vendor_with({"aten::mean": lambda x, *, dtype=None: np.mean(x, dtype=x.dtype) + np.float32(1)})
    found = bisected(made)
    assert found.order == {"aten::mean.default": ("host",)}
    assert found.to_toml() == '[order]\n"aten::mean.default" = ["host"]'
    with flroute.enable(device=made.name, fallback="allow", order=found.order) as session:
        assert abs(float(number()) - found.good) < 1e-5
    routes = {d.op: d.route for d in session.decisions}
    assert routes["aten::mean"] == "decomposed"  # as PyTorch does it on the host: into the other one
    assert routes["aten::mean.dim"] == "native"


def test_a_pair_that_spoils_only_together_is_found_and_said_to(vendor_with: Callable[..., Made]) -> None:
    workspace = {"dirty": False}

    def exp(x: Any) -> Any:  # right, but leaves behind what tanh trips over
        workspace["dirty"] = True
        return np.exp(x)

    def tanh(x: Any) -> Any:
        return np.tanh(x) + np.float32(workspace["dirty"])

    def metric() -> torch.Tensor:
        workspace["dirty"] = False
        return number()

    found = bisected(vendor_with({"aten::exp": exp, "aten::tanh": tanh}), metric)
    assert {*found.ops, *found.together_with} == {"aten::exp", "aten::tanh"}
    assert len(found.ops) == len(found.together_with) == 1
    assert f"only together with {found.together_with[0]}" in str(found)


def test_three_ops_at_fault(vendor_with: Callable[..., Made]) -> None:
    wrong = {
        op: _as(RIGHT[op], lambda x, f=RIGHT[op]: f(x) + np.float32(0.1))
        for op in ("aten::exp", "aten::neg", "aten::sqrt")
    }
    assert set(bisected(vendor_with(wrong)).ops) == set(wrong)


def test_ops_that_share_a_kernel_are_both_named(vendors: Vendors) -> None:
    def wrong(x: Any) -> Any:
        return np.exp(x) + np.float32(0.1)

    made = vendors(
        COPY,
        *(Kernel(op, wrong) for op in ("aten::exp", "aten::sinh")),
        *(Kernel(op, RIGHT[op]) for op in ("aten::tanh", "aten::sum")),
    )
    found = bisected(made, lambda: (torch.ones(3).exp() + torch.ones(3).sinh().tanh()).sum())
    assert set(found.ops) == {"aten::exp", "aten::sinh"}
    assert len(found.kernels) == 1


def test_an_in_place_form_is_sent_along_with_its_op() -> None:
    native = {
        "aten::add_.Tensor": ["a:add"],
        "aten::relu": ["a:relu"],
        "aten::add.Tensor": ["a:fast"],
        "aten::mul.Tensor": ["a:fast"],
    }
    assert grouped(native) == [("aten::relu",), ("aten::add.Tensor", "aten::mul.Tensor", "aten::add_.Tensor")]


def test_a_composite_that_is_split_on_its_way_to_the_host_takes_its_parts_along(
    vendor_with: Callable[..., Made],
) -> None:
    """``addmm`` is wrong, too, but the device never computes it before ``linear`` is taken away."""

    def metric() -> torch.Tensor:
        with torch.inference_mode():
            return (
                torch.nn.functional.linear(torch.ones(2, 3), torch.full((4, 3), 0.5), torch.ones(4))
                .exp()
                .sum()
            )

    made = vendor_with(
        None,
        Kernel(
            "aten::linear", named("wrong_linear", lambda x, weight, bias=None: linear(x, weight, bias) + 1)
        ),
        Kernel(
            "aten::addmm", named("wrong_addmm", lambda bias, x, y, *, beta=1, alpha=1: addmm(bias, x, y) + 2)
        ),
    )
    found = bisected(made, metric)
    assert found.ops == ("aten::linear",)
    assert found.parts == ("aten::addmm",)
    with flroute.enable(device=made.name, fallback="allow", order=found.order):
        assert abs(float(metric()) - found.good) < 1e-3


def test_parts_that_are_right_stay_on_the_device(vendor_with: Callable[..., Made]) -> None:
    def metric() -> torch.Tensor:
        with torch.inference_mode():
            return torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)).exp().sum()

    made = vendor_with(
        None,
        Kernel(
            "aten::linear", named("wrong_linear", lambda x, weight, bias=None: linear(x, weight, bias) + 1)
        ),
        Kernel("aten::addmm", addmm),
    )
    found = bisected(made, metric)
    assert (found.ops, found.parts) == (("aten::linear",), ())
    with flroute.enable(device=made.name, fallback="allow", order=found.order) as session:
        assert abs(float(metric()) - found.good) < 1e-3
    assert "aten::addmm" in {d.op for d in session.decisions if d.route == "native"}


def test_a_metric_that_is_nan_on_the_device_is_looked_for_like_any_other(
    vendor_with: Callable[..., Made],
) -> None:
    found = bisected(vendor_with({"aten::sqrt": lambda x: np.full_like(x, np.nan)}))
    assert found.ops == ("aten::sqrt",)
    assert math.isnan(found.on_device)
    assert found.to_dict()["on_device"] == "nan"


def test_rules_of_the_users_own_hold_in_every_run(vendor_with: Callable[..., Made]) -> None:
    wrong = {op: lambda x: np.abs(x) + 1 for op in ("aten::exp", "aten::tanh")}
    found = bisected(vendor_with(wrong), rules=[{"op": "aten::exp", "order": "host"}])
    assert found.ops == ("aten::tanh",)
    assert found.suspects == len(RIGHT) - 1


def test_each_run_draws_the_same_random_numbers(vendor_with: Callable[..., Made]) -> None:
    drawn = []

    def metric() -> torch.Tensor:
        drawn.append((float(torch.rand(1, device="cpu")), float(np.random.random())))
        return torch.rand(3).exp().sum()

    torch.fl.manual_seed(3)
    try:
        found = bisected(vendor_with({"aten::exp": lambda x: np.exp(x) * 2}), metric)
    finally:
        torch.manual_seed(0)  # the devices follow the host again
    assert found.ops == ("aten::exp",)
    assert len(set(drawn)) == 1
    assert len(drawn) == found.runs


def test_a_metric_may_be_a_truth_value(vendor_with: Callable[..., Made]) -> None:
    found = bisected(vendor_with({"aten::neg": lambda x: x}), lambda: bool(number() < 10))
    assert found.ops == ()  # the same on the host
    found = bisected(
        vendor_with({"aten::sum": lambda x, *, dtype=None: -np.sum(x)}), lambda: bool(number() > 0)
    )
    assert found.ops == ("aten::sum",)


# -- what it says -------------------------------------------------------------------------------------------------


def test_a_metric_that_is_fine_from_the_start_is_said_to_be(vendor_with: Callable[..., Made]) -> None:
    found = bisected(vendor_with())
    assert found.ops == ()
    assert found.runs == 3
    assert "there is nothing to look for" in str(found)
    assert found.to_toml() == ""


def test_it_says_how_many_runs_there_are_to_be_before_it_begins(
    vendor_with: Callable[..., Made], capsys: pytest.CaptureFixture[str]
) -> None:
    made = vendor_with({"aten::exp": lambda x: np.exp(x) * 2})
    found = flroute.bisect(number, 1e-5, device=made.name)
    first, plan = capsys.readouterr().err.splitlines()[:2]
    assert "3 times to begin with" in first
    assert "7 ops computed by the device" in plan
    said = re.search(r"at fault, (\d+) to (\d+) runs in all", plan)
    assert said is not None
    assert int(said[1]) <= found.runs <= int(said[2]) <= 2 * log2(7) + 6


def test_the_result_is_written_as_text_as_json_and_for_a_notebook(
    vendor_with: Callable[..., Made], tmp_path: Path
) -> None:
    found = bisected(vendor_with({"aten::exp": lambda x: np.exp(x) * 2}))
    assert "aten::exp: with its kernels the metric is" in str(found)
    assert '"aten::exp.default" = ["host"]' in str(found)
    assert "aten::exp.default" in found._repr_html_()
    found.to_json(tmp_path / "found.json")
    kept = json.loads((tmp_path / "found.json").read_text())
    assert kept["ops"] == ["aten::exp"]
    assert kept["order"] == {"aten::exp.default": ["host"]}
    assert kept["runs"] == found.runs
