"""Models that are hard to compare: each is compared as far as it can be, and the report says how far that is."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

import flroute
from flroute.cli import app
from flroute.device import rng
from flroute.vendor import Kernel
from support import Vendors, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)


class Function(nn.Module):
    """A module that is one function, and the modules it uses."""

    def __init__(self, function: Any, **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def compared(function: Any, inputs: Any, a: str = "reference", **more: Any) -> flroute.Comparison:
    modules = {name: value for name, value in more.items() if isinstance(value, nn.Module)}
    options = {name: value for name, value in more.items() if name not in modules}
    return flroute.compare(Function(function, **modules), inputs, a=a, **options)


# -- random numbers


@pytest.mark.parametrize(
    "draw",
    [
        lambda m, x: functional.dropout(x, 0.5),
        lambda m, x: x + torch.randn_like(x),
        lambda m, x: x * torch.rand(4, device=x.device),
    ],
)
def test_one_seed_gives_both_the_same_draws(draw: Any) -> None:
    found = compared(draw, torch.ones(8, 4, requires_grad=True))
    assert found.passed, str(found)
    assert any(t.difference.numel and t.difference.scale for t in found.tensors)


def test_draws_that_cannot_be_aligned_are_said_to_be(vendors: Vendors) -> None:
    """A device with a generator of its own: what it draws is not the host's, and no fault either."""
    own = np.random.default_rng(7)
    made = vendors(
        Kernel(
            "aten::native_dropout",
            named("own", lambda x, p, train: ((keep := own.random(x.shape) > p) * x / (1 - p), keep)),
        )
    )
    found = compared(
        lambda m, x: m.head(functional.dropout(x, 0.5)), made_inputs(), made.name, head=nn.Linear(4, 2)
    )
    assert found.passed, str(found)
    remark = next(r for r in found.remarks if "runs cannot be aligned" in r)
    assert "aten::native_dropout" in remark
    assert "model.eval()" in remark


def test_a_dropout_is_judged_by_the_mask_it_drew(vendors: Vendors) -> None:
    own = np.random.default_rng(7)
    made = vendors(
        Kernel(
            "aten::native_dropout",
            named("unscaled", lambda x, p, train: ((keep := own.random(x.shape) > p) * x, keep)),
        )
    )
    found = compared(lambda m, x: functional.dropout(x, 0.5), made_inputs(), made.name)
    assert [op.op for op in found.culprits] == ["aten::native_dropout"]


def made_inputs() -> Tensor:
    return torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_generators_and_model_are_as_they_were() -> None:
    model, x = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)), torch.randn(6, 4, requires_grad=True)
    before = copy.deepcopy(model.state_dict())
    rng.manual_seed(3)
    states = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        rng.get_rng_state().tolist(),
    )
    flroute.compare(model, x, a="reference")
    after = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        rng.get_rng_state().tolist(),
    )
    torch.manual_seed(0)  # lets the device follow the host again
    assert after == states
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert x.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# -- outputs


@dataclass
class Answer:
    loss: Tensor
    logits: Tensor
    count: int = 3
    nothing: None = None


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (lambda m, x: {"a": x.exp(), "b": [x.sin(), None, 7, "word"]}, {"a", "b.0"}),
        (lambda m, x: Answer(x.sum(), x.exp()), {"loss", "logits"}),
        (lambda m, x: (Answer(x.sum(), x.exp()), 1), {"0.loss", "0.logits"}),
    ],
    ids=["dictionary", "dataclass", "nested"],
)
def test_outputs_in_structures_are_found(output: Any, names: set[str]) -> None:
    found = compared(output, torch.randn(3, requires_grad=True))
    assert found.passed, str(found)
    assert {t.name for t in found.tensors if t.what == "result"} == names
    assert {t.name for t in found.tensors if t.what == "gradient of input"} == {"0.0"}


@pytest.mark.parametrize("output", [None, 3, "word", []], ids=repr)
def test_outputs_that_are_no_tensors_leave_the_ops(output: Any) -> None:
    found = compared(lambda m, x: (x.exp(), output)[1], torch.randn(3, requires_grad=True))
    assert found.passed
    assert [op.op for op in found.ops] == ["aten::exp"]
    assert "no output has a gradient: there was no backward pass" in found.remarks


def test_integer_outputs_are_to_be_the_same() -> None:
    found = compared(lambda m, x: x.argmax(-1), torch.randn(3, 5))
    assert found.passed
    (result,) = [t for t in found.tensors if t.what == "result"]
    assert result.difference.is_exact


def test_a_wrong_integer_is_beyond_any_tolerance(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::argmax", named("off", lambda x, dim=None, keepdim=False: np.asarray(x.argmax(dim) + 1)))
    )
    found = compared(lambda m, x: x.argmax(-1), torch.randn(3, 5), made.name)
    assert found.first_divergence is not None
    assert found.first_divergence.op == "aten::argmax"


def test_a_loss_of_the_users_is_where_gradients_begin() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    found = compared(
        lambda m, x: {"y": m.head(x)}, x, head=nn.Linear(4, 2), loss=lambda out: out["y"].square().sum()
    )
    assert found.passed
    assert any(op.op.startswith("aten::pow") for op in found.ops)


def test_a_model_without_parameters_or_gradients() -> None:
    found = compared(lambda m, x: x.exp(), torch.randn(3))
    assert found.passed
    assert {t.what for t in found.tensors} == {"output", "result"}
    assert "no output has a gradient: there was no backward pass" in found.remarks


def test_nothing_is_compared_backward_unless_asked() -> None:
    found = compared(lambda m, x: m.head(x), torch.randn(3, 4), head=nn.Linear(4, 2), backward=False)
    assert found.passed
    assert not any("gradient" in t.what for t in found.tensors)
    assert not found.remarks


def test_keyword_arguments_come_as_a_dictionary() -> None:
    found = compared(
        lambda m, x, scale: x * scale,
        {"x": torch.ones(3), "scale": torch.full((3,), 2.0, requires_grad=True)},
    )
    assert found.passed
    assert {t.name for t in found.tensors if t.what == "gradient of input"} == {"1.scale"}


# -- modules


def test_a_module_that_is_called_twice_has_two_rows() -> None:
    found = compared(lambda m, x: m.head(m.head(x).relu()), torch.randn(3, 4), head=nn.Linear(4, 4))
    assert found.passed
    assert [(t.name, t.turn) for t in found.tensors if t.what == "output"] == [
        ("head", 0),
        ("head", 1),
        ("", 0),
    ]
    assert "head (call 2)" in str(found)


def test_a_shared_module_has_one_name() -> None:
    shared = nn.Linear(4, 4)
    found = compared(lambda m, x: m.second(m.first(x)), torch.randn(3, 4), first=shared, second=shared)
    assert found.passed
    assert [(t.name, t.turn) for t in found.tensors if t.what == "output"] == [
        ("first", 0),
        ("first", 1),
        ("", 0),
    ]


def test_in_place_changes_of_an_output_do_not_change_what_was_kept() -> None:
    found = compared(lambda m, x: m.head(x).relu_(), torch.randn(5, 4), head=nn.Linear(4, 4))
    assert found.passed
    output = next(t for t in found.tensors if t.what == "output" and t.name == "head")
    assert output.difference.scale > 0
    assert any(t.what == "gradient" and t.name == "head" for t in found.tensors)


# -- control flow


@pytest.fixture
def off(vendors: Vendors) -> str:
    """A vendor whose sums are off by one."""
    made = vendors(
        Kernel("aten::sum", named("off", lambda x, *, dtype=None: np.asarray(x.sum() + 1, x.dtype))),
    )
    return made.name


def branching(m: nn.Module, x: Tensor) -> Tensor:
    return m.up(x) if x.sum() > 0 else m.down(x)


def test_another_branch_is_reported_as_one(off: str) -> None:
    found = compared(branching, torch.full((4,), -0.125), off, up=nn.Linear(4, 2), down=nn.Linear(4, 2))
    assert not found.passed
    assert found.first_divergence is not None
    assert found.first_divergence.op == "aten::sum"  # makes the error that the branch is taken for
    ways = " ".join(detour.in_words("A", "B") for detour in found.detours)
    assert "A ran module up (Linear) where B ran nothing, in up" in ways
    assert "A ran nothing where B ran module down (Linear), in down" in ways
    assert "aten::_local_scalar_dense in the model itself gave 1, not 0" in ways
    assert "module up" in str(found)


def test_another_branch_within_a_module_names_both_ops(off: str) -> None:
    found = compared(lambda m, x: x.exp() if x.sum() > 0 else x.sin(), torch.full((4,), -0.125), off)
    (way,) = found.detours
    assert (way.ran, way.instead) == (("aten::exp",), ("aten::sin",))
    assert "ran aten::exp where cpu ran aten::sin, in the model itself" in str(found)


def test_loops_of_another_length_are_another_way(off: str) -> None:
    def loop(m: nn.Module, x: Tensor) -> Tensor:
        for _ in range(int(x.sum().round().item()) + 3):
            x = m.head(x).tanh()
        return x

    found = compared(loop, torch.zeros(4), off, head=nn.Linear(4, 4))
    assert any(way.ran == ("module head (Linear)",) and not way.instead for way in found.detours)


def test_the_same_by_other_ops_is_no_other_way() -> None:
    found = compared(lambda m, x: functional.dropout(x, 0.5), torch.ones(8, 4, requires_grad=True))
    assert found.passed
    assert not found.detours
    assert any(
        "ran aten::native_dropout where cpu ran aten::bernoulli_.float" in remark for remark in found.remarks
    )


# -- errors


def raises_on_device(m: nn.Module, x: Tensor) -> Tensor:
    y = x.exp()
    if x.device.type == "fl":
        raise ValueError("no such kernel")
    return y


def test_an_error_on_one_device_is_what_the_comparison_finds() -> None:
    found = compared(lambda m, x: m.inner(x.sin()), torch.randn(3), inner=Function(raises_on_device))
    assert not found.passed
    first = found.first_divergence
    assert first is not None
    assert first.module == "inner"
    assert "reference raised ValueError: no such kernel, after aten::exp, where cpu went on" in first.why
    assert "reference raised ValueError" in str(found)


def test_an_error_on_both_is_the_models_own() -> None:
    def broken(m: nn.Module, x: Tensor) -> Tensor:
        raise ValueError("everywhere")

    with pytest.raises(ValueError, match="everywhere"):
        compared(broken, torch.ones(2))


def test_a_model_that_cannot_be_copied_is_said_to_be() -> None:
    class Locked(nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one of me")

    with pytest.raises(flroute.FlrouteError, match=r"Locked cannot be copied.*there is one of me"):
        flroute.compare(Locked(), torch.ones(1), a="reference")


@pytest.mark.parametrize("a", ["nobody", "reference:9"])
def test_a_device_that_does_not_exist(a: str) -> None:
    with pytest.raises(flroute.FlrouteError, match=a.partition(":")[0]):
        flroute.compare(nn.Identity(), torch.ones(1), a=a)


@pytest.mark.parametrize(
    "said", ["aten::mm", "aten::mm=", "aten::mm=x", "=1", "aten::mm=-1", "aten::mm=1:nan"]
)
def test_a_tolerance_that_is_none(said: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import torch\ndef make(): return torch.nn.Identity(), torch.ones(1)")
    ran = CliRunner().invoke(app, ["compare", f"{tmp_path}/m.py:make", "--tolerance", said])
    assert ran.exit_code == 2
    assert "PATTERN=RTOL" in ran.stderr


def test_tolerances_of_the_users_own() -> None:
    model, x = nn.Linear(64, 8), torch.randn(4, 64)
    strict = flroute.compare(model, x, a="reference", tolerances={"aten::addmm": (1e-12, 0.0)})
    assert [op.op for op in strict.culprits] == ["aten::addmm"]
    assert strict.culprits[0].local is not None
    assert strict.culprits[0].local.source == "argument"
    none_at_all = flroute.compare(model, x, a="reference", tolerances={"output": (0.0, 0.0)})
    assert {t.what for t in none_at_all.diverged} == {"output"}


# -- places


def test_two_devices_and_both_kinds_of_host() -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Tanh()), torch.randn(3, 8)
    for a, b in (("reference:1", "opaque"), ("cpu", "host-float64"), ("fl", "fl:1")):
        found = flroute.compare(model, x, a=a, b=b)
        assert found.passed, str(found)
        assert (found.a.place, found.b.place) == (a, b)


def test_the_second_of_two_devices_is_blamed_for_what_it_does(off: str) -> None:
    found = compared(lambda m, x: x.exp().sum(), torch.randn(4), b=off)
    assert [(op.op, op.by) for op in found.culprits] == [("aten::sum", off)]


def test_inside_a_session_the_host_is_the_host() -> None:
    with flroute.enable(device="reference:1"):
        found = compared(lambda m, x: x + torch.ones(4), torch.zeros(4, device="cpu"), "cpu", b="reference")
    assert found.passed
    assert found.a.device.startswith("the host")


def test_attention_that_draws_nothing_is_judged_like_any_op() -> None:
    """PyTorch says of attention that it draws random numbers, which it does with dropout only."""
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    for p in (0.0, 0.3):
        found = compared(lambda m, x, p=p: functional.scaled_dot_product_attention(x, x, x, dropout_p=p), x)
        assert found.passed, str(found)
        assert not any("cannot be aligned" in remark for remark in found.remarks)
        assert all(op.local is not None for op in found.ops), [(op.op, op.unjudged) for op in found.ops]
