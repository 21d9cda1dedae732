"""Programs of many kinds in a shadow: they run as they do without one, nothing is blamed that is right, and rules that are broken are named."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import flroute
from flroute.drift.shadow.report import ShadowReport

pytestmark = pytest.mark.filterwarnings("ignore:.*falls back:UserWarning")

aten = torch.ops.aten


def values(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to("fl")


class Program(nn.Module):
    """A linear layer, and what a function makes of it and an input."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear, x)


def shadowed(function: Callable[[nn.Module, Tensor], Tensor], *, session: bool = False) -> ShadowReport:
    """A forward and a backward pass, as far as there is one."""
    torch.manual_seed(0)
    model = Program(function).to("fl")
    scope = flroute.enable(device="reference", default_device=False) if session else torch.enable_grad()
    with scope, flroute.shadow(model) as s:
        y = model(values(3, 4))
        if y.requires_grad:
            y.sum().backward()
    return s


class Doubled(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp() * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.exp() * 2


def recomputed(linear: nn.Module, x: Tensor, *, reentrant: bool) -> Tensor:
    def part(x: Tensor) -> Tensor:
        return functional.dropout(linear(x).tanh(), 0.5)

    return checkpoint(part, x.requires_grad_(), use_reentrant=reentrant)  # type: ignore[no-any-return]


def written_through_views(linear: nn.Module, x: Tensor) -> Tensor:
    h = linear(x).clone()
    left, right = h[:, :2], h[:, 2:]
    left.mul_(2)
    h.t()[0].add_(right[:, 1])
    h[1:].copy_(h[:-1].clone())
    torch.as_strided(h, (2, 2), (4, 1), 1).add_(x[:2, :2])
    h.diagonal().zero_()
    h.masked_fill_(h > 1, 0.3)
    return h


def complex_numbers(linear: nn.Module, x: Tensor) -> Tensor:
    z = torch.complex(linear(x), x)
    y = (torch.fft.fft(z).conj() * z).clone()
    y.real.mul_(2)
    lazily = y.conj().clone()
    lazily.conj().mul_(2.0)  # PyTorch writes a copy, and copies that back
    y.conj().imag.mul_(3)
    return lazily.abs() + y.imag + y.sgn().real


def of_functions(linear: nn.Module, x: Tensor) -> Tensor:
    gradient = torch.func.grad(lambda x: linear(x).sin().sum())(x)
    return (
        torch.func.vmap(lambda row: row.softmax(0))(linear(x))
        + torch.func.hessian(torch.sum)(x[0]).sum()
        + gradient
    )


def gradient_of_a_gradient(linear: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(linear(x).tanh().sum(), x, create_graph=True)
    return gradient.square()


def sparse_on_the_way(linear: nn.Module, x: Tensor) -> Tensor:
    return linear(x).detach().relu().to_sparse().to_dense() + linear(x)


def without_data(linear: nn.Module, x: Tensor) -> Tensor:
    assert linear(x).to("meta").shape == (3, 4)
    return linear(x)


def ctc(linear: nn.Module, x: Tensor) -> Tensor:
    """Beside the loss it gives sums that are defined only as far as its own backward reads them."""
    scores = functional.pad(linear(x), (0, 0, 0, 5)).unsqueeze(1).log_softmax(2)
    return functional.ctc_loss(scores, torch.tensor([[1, 2, 2]], device="fl"), [6], [3])


PROGRAMS = {
    "checkpoint": lambda linear, x: recomputed(linear, x, reentrant=False),
    "reentrant checkpoint": lambda linear, x: recomputed(linear, x, reentrant=True),
    "function of its own": lambda linear, x: Doubled.apply(linear(x)),
    "views": written_through_views,
    "complex": complex_numbers,
    "functions of functions": of_functions,
    "second gradient": gradient_of_a_gradient,
    "sparse": sparse_on_the_way,
    "meta": without_data,
    "ctc": ctc,
    "mixed with the host": lambda linear, x: linear(x) * torch.tensor(2.0) + linear(linear(x).cpu().to("fl")),
}


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_nothing_is_blamed_in_a_program_that_is_right(
    program: Callable[[nn.Module, Tensor], Tensor], session: bool
) -> None:
    found = shadowed(program, session=session)
    assert found.ok, found
    assert not found.unjudged
    assert "aten::addmm" in {row.op for row in found.rows()}


def test_memory_that_held_something_else_is_no_result() -> None:
    for _ in range(3):
        junk = [torch.full((n,), 1e30, device="fl") for n in (63, 42, 27, 21, 9) * 8]
        del junk
        assert shadowed(ctc).ok


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.Adam(p, foreach=False, amsgrad=True),
        lambda p: torch.optim.Adam(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
        torch.optim.Adafactor,
    ],
    ids=["SGD foreach", "SGD fused", "Adam", "Adam foreach", "AdamW fused", "RMSprop", "LBFGS", "Adafactor"],
)  # fmt: skip
def test_optimizers(optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to("fl")
    steps = optimizer(list(model.parameters()))

    def loss() -> Tensor:
        steps.zero_grad()
        found = model(values(3, 4)).tanh().square().sum()
        found.backward()
        return found

    with flroute.shadow(model) as s:
        for _ in range(2):
            steps.step(loss)
    assert s.ok, s
    assert not s.unjudged
    assert max(call.accumulated / max(call.scale, 1) for call in s.calls) < 1e-4


def test_sparse_gradients() -> None:
    words = nn.Embedding(5, 4, sparse=True).to("fl")
    optimizer = torch.optim.SparseAdam(list(words.parameters()))
    with flroute.shadow(words) as s:
        words(torch.tensor([0, 1, 1], device="fl")).sum().backward()
        optimizer.step()
    assert s.ok, s
    assert words.weight.grad.is_sparse


def test_a_model_may_be_copied_and_saved_whole() -> None:
    model = nn.Linear(4, 4).to("fl")
    with flroute.shadow(model, sample=0.5) as s:
        twin = copy.deepcopy(model)
        torch.save(model, kept := io.BytesIO())
        for _ in range(4):
            twin(values(3, 4))  # a call of another model is no step
        model(values(3, 4))
    kept.seek(0)
    assert type(torch.load(kept, weights_only=False)) is nn.Linear
    assert {call.place.step for call in s.calls} <= {0}


def test_an_error_that_the_program_expects_leaves_no_row() -> None:
    def function(linear: nn.Module, x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        return linear(x)

    found = shadowed(function)
    assert found.ok
    assert "aten::mm" not in {row.op for row in found.rows() if row.phase == "forward"}
    assert not found.unjudged


def test_calls_in_other_threads_are_counted_and_not_looked_at() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("fl")
    entered, go_on = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            entered.set()
            assert go_on.wait(60)
            return x

    with flroute.shadow(model) as s:
        thread = threading.Thread(target=Waiting(), args=(values(2),))
        thread.start()
        assert entered.wait(60)
        values(2).exp()  # another thread is inside a module, this one is not
        model(values(3, 4))
        go_on.set()
        thread.join()
    assert {row.module for row in s.rows() if row.op == "aten::exp"} == {None}
    assert {row.module for row in s.rows() if row.op == "aten::addmm"} == {"0"}
    assert s.elsewhere == 1
    assert "not looked at: 1 call of modules in other threads" in str(s)


# -- rules beside values


class Careless(TorchDispatchMode):
    """A device whose kernels forget what is owed beside values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is aten.abs.default:
            return args[0]
        if func is aten.exp.default:
            return result.double()
        if func is aten.sin.default:
            return result.t().clone(memory_format=torch.contiguous_format).t()
        if func is aten.cos.default:
            return result[:1].clone()
        if func is aten.mul_.Tensor:
            return result.clone()
        return result


@pytest.mark.parametrize(
    ("call", "rule", "op"),
    [
        (lambda x: x.abs(), "aliasing", "aten::abs"),
        (lambda x: aten.mul_.Tensor(x, x), "aliasing", "aten::mul_.Tensor"),
        (lambda x: x.exp(), "dtype", "aten::exp"),
        (lambda x: x.sin(), "strides", "aten::sin"),
        (lambda x: x.cos(), "shape", "aten::cos"),
    ],
    ids=["aliasing", "another tensor", "dtype", "strides", "shape"],
)
def test_a_rule_that_is_broken_is_named(call: Callable[[Tensor], Any], rule: str, op: str) -> None:
    model, x = Program(lambda _, x: call(x)), values(3, 4)
    with Careless(), flroute.shadow(model) as s, torch.no_grad():
        model(x)
    assert {(v.rule, v.op, v.place.module) for v in s.violations if v.op == op} == {(rule, op, "Program")}
    assert f"broken rule, {rule}: {op}" in str(s)


def test_a_version_that_does_not_move_is_named() -> None:
    x = values(3)
    with flroute.shadow(nn.Identity()) as s:
        with torch.autograd._unsafe_preserve_version_counter(x):
            x.mul_(2)
        x.sum()
    assert [(v.rule, v.op) for v in s.violations] == [("version", "aten::mul_.Tensor")]


# -- infinities and NaNs


def test_what_is_infinite_on_purpose_hides_no_nan() -> None:
    def function(linear: nn.Module, x: Tensor) -> Tensor:
        hidden = torch.ones(3, 4, dtype=torch.bool, device="fl")
        return linear(x).masked_fill(hidden, -torch.inf).softmax(-1)  # a row of which nothing is seen

    found = shadowed(function)
    assert [(n.op, n.is_nan, n.in_reference) for n in found.nonfinite] == [
        ("aten::_softmax", True, True),
        ("aten::masked_fill.Scalar", False, True),
    ]
    assert found.first_nonfinite.op == "aten::_softmax"
    assert [n["op"] for n in found.to_dict()["nonfinite"]] == ["aten::_softmax", "aten::masked_fill.Scalar"]


def test_an_infinity_that_the_reference_has_not_comes_first() -> None:
    found = shadowed(
        lambda linear, x: linear(x).detach().div(0.0).abs() + (x * 1e30).square()
    )  # beyond float32
    assert [(n.op, n.in_reference) for n in found.nonfinite] == [
        ("aten::pow.Tensor_Scalar", False),
        ("aten::div.Tensor", True),
    ]


# -- tensors of their own


def test_a_copy_of_a_shadow_tensor_is_of_the_same_record() -> None:
    x = flroute.ShadowTensor(values(3, 4))
    twin = copy.deepcopy(x)
    assert type(x + twin) is flroute.ShadowTensor
    assert twin.report.calls == x.report.calls


def test_a_shadow_tensor_is_saved_as_the_tensor_it_wraps() -> None:
    x = flroute.ShadowTensor(values(3, 4))
    torch.save(x, kept := io.BytesIO())
    kept.seek(0)
    loaded = torch.load(kept)
    assert type(loaded) is Tensor
    torch.testing.assert_close(loaded, x.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_see_shadow_tensors_op_by_op(backend: str) -> None:
    x = flroute.ShadowTensor(values(3, 4))
    before = len(x.report.calls)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.compile(lambda x: x.sin().cos(), backend=backend)(x)
    assert [call.op for call in x.report.calls[before:]] == ["aten::sin", "aten::cos"]
    assert type(y) is flroute.ShadowTensor
    torch.testing.assert_close(y.value, x.value.sin().cos())
