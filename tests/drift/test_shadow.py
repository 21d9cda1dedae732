"""Shadow runs: what they see, what they leave alone, and what they say of programs that go astray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flroute
from flroute.drift.shadow.report import ShadowReport
from flroute.errors import ShadowError
from flroute.vendor import Kernel
from support import Made, Vendors

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:.*falls back:UserWarning"),
]


def exp_in_half_precision(x: Any) -> Any:
    return np.exp(x).astype(np.float16).astype(x.dtype)


def log_of_its_size(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.log(np.abs(x) - 1)


def tanh_that_writes_its_argument(x: Any) -> Any:
    y = np.tanh(x)
    x[...] = 0
    return y


calls_of_sin = []


def sin_never_twice_the_same(x: Any) -> Any:
    calls_of_sin.append(1)
    return np.sin(x) * np.float32(1 + 1e-7 * len(calls_of_sin))


KERNELS = (
    Kernel("aten::exp", exp_in_half_precision),
    Kernel("aten::log", log_of_its_size),
    Kernel("aten::tanh", tanh_that_writes_its_argument),
    Kernel("aten::sin", sin_never_twice_the_same),
)


@pytest.fixture
def wrong() -> Iterator[Made]:
    """A vendor whose kernels are wrong."""
    vendors = Vendors()
    yield vendors(*KERNELS, name="wrong")
    vendors.forget()


class Calls(nn.Module):
    """A module made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.weight, *inputs)


def on_device(function: Callable[..., Any]) -> Calls:
    return Calls(function).to("fl")


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2))
    return layers.to("fl")


def ops(found: ShadowReport) -> list[str]:
    return [call.op for call in found.calls]


# -- what it sees


def test_forward_backward_and_optimizer_are_seen_where_they_are() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with flroute.enable(device="reference"), flroute.shadow(model) as s:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert s.ok, s
    places = {(row.op, row.module, str(row.phase)) for row in s.rows()}
    assert {
        ("aten::addmm", "0", "forward"),
        ("aten::tanh", "1", "forward"),
        ("aten::mm", "3", "backward"),
        ("aten::tanh_backward", "1", "backward"),
    } <= places
    assert any(phase == "optimizer" for _, _, phase in places)
    assert s.reference_seconds > 0


@pytest.mark.parametrize("session", [True, False])
def test_outside_a_session_as_inside(session: bool) -> None:
    model = perceptron().eval()
    x = torch.ones(3, 4, device="fl", requires_grad=True)
    scope = flroute.enable(device="reference", default_device=False) if session else torch.no_grad
    with flroute.shadow(model) as s:
        if session:
            with scope:  # a session inside of a shadow: both see every call
                model(x).sum().backward()
        else:
            model(x).sum().backward()
    assert s.ok, s
    assert {"aten::addmm", "aten::mm"} <= set(ops(s))
    assert x.grad is not None


@pytest.mark.parametrize("contract", [False, True])
def test_the_session_accounts_for_what_the_device_does_alone(contract: bool) -> None:
    model = perceptron().eval()
    counts = []
    for looked_at in (False, True):
        with flroute.enable(device="reference", default_device=False) as session:
            x = torch.ones(3, 4, device="fl")
            if looked_at:
                with flroute.shadow(model, contract=contract, repeats=0):
                    model(x).sum()
            else:
                model(x).sum()
        done = [
            d for d in session.decisions if d.route != "view"
        ]  # autograd detaches once more under a second mode
        counts.append({(d.op, str(d.route)): (d.calls, d.bytes_to_host) for d in done})
    assert counts[0] == counts[1]


def test_local_errors_are_of_one_op_and_accumulated_ones_of_all_before() -> None:
    model = on_device(lambda w: w.sin().sin().sin().sin().sin().sin())
    with flroute.shadow(model) as s:
        y = model()
    exact = model.weight.detach().cpu().double()
    for _ in range(6):
        exact = exact.sin()
    assert s.calls[-1].accumulated == float((y.detach().cpu().double() - exact).abs().max())
    assert s.calls[-1].scale == pytest.approx(float(exact.abs().max()), rel=1e-6)
    assert all(call.local <= 2e-7 for call in s.calls)


def test_views_and_writes_in_place_are_one_memory_in_both_values() -> None:
    def function(w: Tensor) -> Tensor:
        base = torch.zeros(2, 4, device="fl")
        base[0].copy_(w / 3)
        base.t()[1:3].mul_(w[:2] / 7)
        base.view(-1)[5] = w[0].exp()
        return base

    model = on_device(function)
    with flroute.shadow(model) as s, torch.no_grad():
        y = flroute.ShadowTensor(model())
        reference = y.reference
    w = model.weight.detach().cpu().double()
    exact = torch.zeros(2, 4, dtype=torch.float64)
    exact[0] = w / 3
    exact.t()[1:3] *= w[:2] / 7
    exact.view(-1)[5] = w[0].exp()
    assert s.ok, s
    torch.testing.assert_close(reference, exact, rtol=1e-15, atol=1e-15)


def test_a_wrong_kernel_is_named_and_what_follows_from_it_is_not(wrong: Made) -> None:
    model = Calls(lambda w: (w.exp() * 2).sum()).to(wrong.device)
    with flroute.shadow(model) as s:
        model().backward()
    assert not s.ok
    assert [row.op for row in s.wrong] == ["aten::exp"]
    assert s.first_divergence.op == s.worst.op == "aten::exp"
    assert s.first_divergence.place.module == "Calls"
    assert s.worst.tolerance.source == "flroute: transcendental"
    assert s.worst.excess > 100


def test_inference_mode_and_autocast() -> None:
    model = perceptron()
    x = torch.ones(3, 4, device="fl")
    with flroute.shadow(model) as s:
        with torch.inference_mode():
            model(x)
        with torch.autocast("fl", dtype=torch.bfloat16):
            model(x).sum().backward()
    assert s.ok, s
    assert any(row.local.numel and "mm" in row.op for row in s.rows())


# -- what it leaves alone


def state(model: nn.Module) -> dict[str, Any]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (id(t), type(t), t._version, t.data_ptr()) for name, t in tensors}


@pytest.mark.parametrize("sample", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("raises", [False, True])
def test_the_model_is_as_it_was(sample: float, raises: bool) -> None:
    model = perceptron()
    before, hooks = state(model), (dict(model._forward_hooks), dict(model._forward_pre_hooks))
    depth = torch._C._len_torch_dispatch_stack()

    def run() -> None:
        with flroute.shadow(model, sample=sample):
            for _ in range(4):
                model(torch.ones(3, 4, device="fl")).sum().backward()
            if raises:
                model(torch.ones(3, 5, device="fl"))

    if raises:
        with pytest.raises(RuntimeError, match=r"shapes|size"):
            run()
    else:
        run()
    assert state(model) == before
    assert (dict(model._forward_hooks), dict(model._forward_pre_hooks)) == hooks
    assert torch._C._len_torch_dispatch_stack() == depth
    for parameter in model.parameters():
        assert type(parameter.grad) is Tensor
        assert parameter.grad.device == parameter.device


def test_training_goes_on_as_if_nobody_looked() -> None:
    def trained(looked_at: bool) -> list[Tensor]:
        model = perceptron()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        for step in range(4):
            scope = flroute.shadow(model) if looked_at and step in (1, 2) else torch.enable_grad()
            with scope:
                optimizer.zero_grad()
                model(torch.ones(3, 4, device="fl")).sum().backward()
                optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_mode_that_is_entered_before_the_model_is_called_is_left_in_order() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = perceptron()
    with flroute.shadow(model, sample=0.5, seed=1) as s:
        for _ in range(8):
            with FlopCounterMode(display=False) as flops:
                model(torch.ones(3, 4, device="fl"))
            assert flops.get_total_flops() > 0
    steps = {call.place.step for call in s.calls}
    assert 0 < len(steps) < 8
    assert torch._C._len_torch_dispatch_stack() == 0


# -- sampling, references


def test_steps_are_looked_at_by_chance_and_the_same_for_one_seed() -> None:
    model = perceptron()

    def looked_at(seed: int) -> set[int]:
        with flroute.shadow(model, sample=0.3, seed=seed) as s:
            for _ in range(20):
                model(torch.ones(1, 4, device="fl"))
        return {call.place.step for call in s.calls}

    assert looked_at(1) == looked_at(1) != looked_at(2)
    assert 0 < len(looked_at(1)) < 15


def test_what_is_not_looked_at_asks_nothing_of_the_reference() -> None:
    model = perceptron()
    with flroute.shadow(model, sample=0.0) as s:
        model(torch.ones(3, 4, device="fl")).sum().backward()
    assert (s.calls, s.reference_seconds, s.ok) == ([], 0.0, True)


@pytest.mark.parametrize("reference", ["host", "reference:1", "fl:0"])
def test_other_references(reference: str, wrong: Made) -> None:
    right, bad = on_device(lambda w: (w.exp() * 2).sum()), Calls(lambda w: w.exp().sum()).to(wrong.device)
    with flroute.shadow(right, reference=reference) as s:
        right().backward()
    assert s.ok, s
    with flroute.shadow(bad, reference=reference) as s:
        bad().backward()
    assert [row.op for row in s.wrong] == ["aten::exp"]
    assert s.reference == {"fl:0": "reference:0"}.get(reference, reference)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"reference": "cpu"}, "'host-float64', 'host', or a device of a vendor"),
        ({"reference": "nobody:0"}, "no vendor named 'nobody'"),
        ({"sample": 2.0}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(flroute.FlrouteError, match=said):
        flroute.shadow(perceptron(), **arguments)
    with pytest.raises(ShadowError, match=r"takes a torch.nn.Module"):
        flroute.shadow(lambda x: x)  # type: ignore[arg-type]


# -- programs that go astray


def test_dropout_and_random_numbers_are_drawn_once_for_both() -> None:
    model = on_device(lambda w: nn.functional.dropout(w * torch.rand(4, device="fl"), 0.5).sum())
    torch.manual_seed(0)
    plain = model().item()
    torch.manual_seed(0)
    with flroute.shadow(model) as s:
        looked_at = model()
    assert looked_at.item() == plain
    assert s.ok, s
    assert s.drawn == ["aten::rand"] or "aten::native_dropout" in ops(s)
    assert max(call.accumulated for call in s.calls) < 1e-6


def test_outputs_that_are_no_tensors_and_a_module_called_twice() -> None:
    model = on_device(lambda w, x: {"sum": [float((w * x).sum()), None], "words": "as they are"})
    with flroute.shadow(model) as s, torch.no_grad():
        first, second = model(torch.ones(4, device="fl")), model(torch.ones(4, device="fl"))
    assert first == second == {"sum": [4.0, None], "words": "as they are"}
    assert s.ok
    assert {call.place.step for call in s.calls} == {0, 1}


def test_a_branch_that_the_reference_would_not_take_is_told() -> None:
    def function(w: Tensor) -> Tensor:
        third = w[:1] * 0 + 1 / 3  # float32 rounds it up
        return w.exp() if bool((third.double() > 1 / 3).all()) else w.sin()

    model = on_device(function)
    with flroute.shadow(model) as s:
        y = model()
    (branch, *_) = s.branches
    assert (branch.op, branch.device, branch.reference) == ("aten::_local_scalar_dense", "True", "False")
    torch.testing.assert_close(y.cpu(), model.weight.detach().cpu().exp())  # the device's branch was taken
    assert any("another branch" in line for line in s.summary())


def test_shapes_that_depend_on_values_are_the_device_s() -> None:
    def function(w: Tensor) -> Tensor:
        third = w * 0 + 1 / 3  # float32 rounds it up
        return third[third.double() > 1 / 3].sum() + third[third > 0].sum()

    model = on_device(function)
    with flroute.shadow(model) as s:
        model()
    assert s.first_divergence is None
    assert ("aten::index.Tensor", "shape [4]", "shape [0]") in {
        (b.op, b.device, b.reference) for b in s.branches
    }


def test_one_shadow_inside_another() -> None:
    outer, inner = perceptron(), on_device(lambda w: w.exp().sum())
    with flroute.shadow(outer) as around:
        outer(torch.ones(3, 4, device="fl"))
        with flroute.shadow(inner) as within:
            inner().backward()
        outer(torch.ones(3, 4, device="fl")).sum().backward()
    assert around.ok
    assert within.ok
    assert "aten::exp" in ops(within)
    assert "aten::exp" in ops(around)
    assert "aten::addmm" not in ops(within)


def test_integers_truth_values_empty_and_complex_tensors() -> None:
    def function(w: Tensor) -> Tensor:
        z = torch.complex(w, w / 3)
        empty = w[:0].exp().sum()
        counts = (w > 1).sum() + torch.arange(4, device="fl").cumsum(0).sum()
        return (z * z.conj()).real.sum() + torch.view_as_real(z.exp()).sum() + empty + counts

    model = on_device(function)
    with flroute.shadow(model) as s:
        model().backward()
    assert s.ok, s
    assert max(call.accumulated / max(call.scale, 1) for call in s.calls) < 1e-5


def test_an_error_of_the_program_is_the_program_s() -> None:
    model = on_device(lambda w: w @ torch.ones(3, 3, device="fl"))
    with pytest.raises(RuntimeError) as plain:
        model()
    with flroute.shadow(model) as s, pytest.raises(RuntimeError) as looked_at:
        model()
    assert str(looked_at.value) == str(plain.value)
    assert s.ok


# -- rules beside values


def test_a_kernel_that_writes_its_argument_or_never_says_the_same_breaks_a_rule(wrong: Made) -> None:
    model = Calls(lambda w: (w * 1).tanh().sum() + w.sin().sum()).to(wrong.device)
    with flroute.shadow(model) as s, torch.no_grad():
        model()
    assert {(v.rule, v.op) for v in s.violations} == {
        ("in-place", "aten::tanh"),
        ("determinism", "aten::sin"),
    }
    assert not s.ok
    with flroute.shadow(model, contract=False) as s, torch.no_grad():
        model()
    assert not s.violations


def test_the_first_infinity_or_nan_is_kept_as_a_script_that_runs(wrong: Made, tmp_path: Path) -> None:
    model = Calls(lambda w: (w + 0.25).log().exp().sum()).to(wrong.device)
    with flroute.shadow(model, save=tmp_path / "kept") as s, torch.no_grad():
        model()
    found = s.first_nonfinite
    assert (found.op, found.in_reference) == ("aten::log", False)
    assert Path(found.script).parent == tmp_path / "kept"
    text = Path(found.script).read_text(encoding="utf-8").replace("'wrong:0'", "'reference:0'")
    Path(found.script).write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, found.script], capture_output=True, text=True, check=True)
    assert "aten::log on reference:0" in done.stdout
    assert "infinite or no numbers: 0 in the result" in done.stdout
    assert Path(s.scripts["aten::log"]).exists()


def test_version_counters_of_lists_move_without_a_session() -> None:
    model = on_device(lambda w: w * 2)
    with flroute.shadow(model) as s, torch.no_grad():
        x = [torch.ones(2, device="fl"), torch.ones(3, device="fl")]
        torch._foreach_mul_(x, 3.0)
        assert [t._version for t in x] == [1, 1]
    assert not s.violations


def test_what_is_written_besides_the_result_has_a_version_that_pytorch_does_not_count() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="fl"))
    optimizer, scaler = torch.optim.SGD([weight], 0.1), torch.amp.GradScaler("fl")
    with flroute.shadow(torch.nn.Identity()) as s:
        scaler.scale((weight * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        weight.detach().record_stream(torch.fl.current_stream())
        mean, var = torch.zeros(2, device="fl"), torch.ones(2, device="fl")
        batch = torch.arange(8.0, device="fl").view(4, 2)
        torch.ops.aten._native_batch_norm_legit(batch, None, None, mean, var, True, 0.1, 1e-5)
    assert mean.tolist() != [0, 0]
    assert {"aten::_amp_update_scale_", "aten::_native_batch_norm_legit"} <= {row.op for row in s.rows()}
    assert s.ok, s


# -- what is told


def test_the_report_in_every_form(wrong: Made, tmp_path: Path) -> None:
    model = Calls(lambda w: w.exp().sum()).to(wrong.device)
    with flroute.shadow(model) as s:
        model().backward()
    text = str(s)
    assert "first wrong: aten::exp in Calls (forward)" in text
    assert "flroute: transcendental" in text
    data = json.loads(s.to_json(tmp_path / "shadow.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(s.to_dict()))
    assert data["first_divergence"]["op"] == "aten::exp"
    assert data["rows"][0]["local"]["max_abs"] > 0
    page = s.to_html(tmp_path / "pages" / "shadow.html").read_text(encoding="utf-8")
    assert "aten::exp" in page
    assert s._repr_html_() in page
