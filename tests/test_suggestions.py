"""What ``flroute.check`` suggests for an op that would fall back; each suggestion, followed, makes it native."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flroute
from flroute import registry
from flroute.coverage import coverage_of
from flroute.vendor import Decomposition, Kernel, hookimpl
from flroute.vocabulary import Precision
from support import COPY, Made, Vendors, WithoutKernels, decision_of, named, throw_away_vendors

plugins = pytest.fixture(throw_away_vendors)


@pytest.fixture
def vendors(plugins: Vendors) -> Iterator[Vendors]:
    """As ever, and vendors that stay lose what plugins brought for them."""
    yield plugins
    plugins.forget()
    plugins._plugins.clear()
    registry.load().rebuild_kernels()


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def missing(
    function: Any, *args: torch.Tensor, device: str, **settings: Any
) -> flroute.model_check.CheckedOp:  # type: ignore[name-defined]
    (found,) = flroute.check(Call(function), args, device, backward=False, **settings).missing
    return found


def neg(**facts: Any) -> Kernel:
    return Kernel("aten::neg", named("neg", lambda x: np.negative(x)), **facts)


def test_a_less_exact_kernel_is_named_with_the_precision_that_admits_it(vendors: Vendors) -> None:
    made = vendors(neg(precision=Precision.MEDIUM))
    (suggestion,) = missing(torch.neg, torch.ones(2), device=made.name).suggestions
    assert suggestion == f'enable(precision="medium") admits {made.name}/python:neg'
    assert not flroute.check(
        Call(torch.neg), torch.ones(2), made.name, backward=False, precision="medium"
    ).missing


def test_arguments_can_be_made_contiguous(vendors: Vendors) -> None:
    made = vendors(neg(layouts=("contiguous",)))
    (suggestion,) = missing(torch.neg, torch.ones(2, 3).t(), device=made.name).suggestions
    assert (
        suggestion
        == f"make its arguments contiguous (tensor.contiguous()): {made.name}/python:neg takes them then"
    )


def test_another_dtype_may_be_native(vendors: Vendors) -> None:
    made = vendors(neg(dtypes=(torch.bfloat16, torch.float64)))
    (suggestion,) = missing(torch.neg, torch.ones(2), device=made.name).suggestions
    assert suggestion == f"compute it in bfloat16: {made.name}/python:neg takes that", (
        "the first of those that are native"
    )


def test_mixed_dtypes_can_be_made_one(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::mul.Tensor", named("mul", lambda x, y: x * y), dtypes=(torch.float32, torch.int64))
    )
    (suggestion,) = missing(
        torch.mul, torch.ones(2), torch.ones(2, dtype=torch.int64), device=made.name
    ).suggestions
    assert suggestion == f"give it float32 throughout: {made.name}/python:mul takes that"


def test_what_the_policy_rules_out_is_named(vendors: Vendors) -> None:
    made = vendors(neg())
    found = missing(torch.neg, torch.ones(2), device=made.name, deny=[f"{made.name}/*"])
    assert f"let the policy (order, rules, allow, deny) admit {made.name}/python:neg" in found.suggestions


def test_nothing_is_suggested_that_was_not_tried(vendors: Vendors) -> None:
    made = vendors(neg(dtypes=(torch.int8,), layouts=("contiguous",)))
    assert missing(torch.neg, torch.ones(2, 3).t(), device=made.name).suggestions == ()


# -- decompositions ------------------------------------------------------------------------------------------------------


class Brings:
    """A plugin with decompositions for one vendor."""

    def __init__(self, vendor: str, *brought: Any) -> None:
        self.vendor, self.brought = vendor, brought

    @hookimpl
    def flroute_decompositions(self, vendor: str) -> Any:
        return self.brought if vendor == self.vendor else ()


OPS = {
    "aten::softshrink": lambda x: torch.nn.functional.softshrink(x, 0.3),
    "aten::hardswish": torch.nn.functional.hardswish,
    "aten::elu": torch.nn.functional.elu,
    "aten::log_sigmoid_forward": torch.nn.functional.logsigmoid,
    "aten::huber_loss": lambda x: torch.nn.functional.huber_loss(x, x.flip(0)),
    "aten::native_layer_norm": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "aten::glu": lambda x: torch.nn.functional.glu(x),
    "aten::rot90": lambda x: x.rot90(),
}


@pytest.mark.parametrize("in_session", [True, False])
@pytest.mark.parametrize("op", [op for op in OPS if op != "aten::rot90"])
def test_pytorchs_decomposition_is_named_and_once_registered_it_is_what_runs(
    op: str, in_session: bool, vendors: Vendors, without_kernels: WithoutKernels
) -> None:
    without_kernels(op)
    function, x = OPS[op], torch.linspace(-2, 2, 12).reshape(3, 4)
    found = missing(function, x, device="reference")
    (suggestion,) = found.suggestions
    assert found.op == op
    assert suggestion.startswith("register PyTorch's decomposition of it, torch.")
    assert "(hook flroute_decompositions): all its parts are native: aten::" in suggestion
    vendors.register(Brings("reference", Decomposition(op)))
    assert not flroute.check(Call(function), x, "reference", backward=False).missing
    device_x = x.to("fl").requires_grad_()
    if in_session:
        with flroute.enable("reference", fallback="error", default_device=False) as session:
            result = function(device_x)
            result.sum().backward()
        assert decision_of(session, op).route == "decomposed"
    else:
        result = function(device_x)
        result.sum().backward()
    host_x = x.clone().requires_grad_()
    expected = function(host_x)
    expected.sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    torch.testing.assert_close(device_x.grad.cpu(), host_x.grad)  # type: ignore[union-attr]


def test_parts_that_would_fall_back_are_named(vendors: Vendors) -> None:
    made = vendors()
    found = missing(OPS["aten::softshrink"], torch.ones(3), device=made.name)
    (suggestion,) = found.suggestions
    assert suggestion.startswith(
        "PyTorch decomposes it (torch._refs.nn.functional.softshrink), and of the parts aten::"
    )
    assert suggestion.endswith("would fall back")


def test_a_decomposition_into_itself_is_none(vendors: Vendors) -> None:
    assert missing(torch.erfinv, torch.zeros(3), device=vendors().name).suggestions == ()


def test_suggestions_are_in_text_page_and_record(without_kernels: WithoutKernels) -> None:
    without_kernels("aten::softshrink")
    model = nn.Sequential(nn.Linear(4, 4), nn.Softshrink())
    found = flroute.check(model, torch.ones(2, 4), "reference")
    assert "    or register PyTorch's decomposition of it, torch._refs" in "\n".join(found.summary())
    assert "or register PyTorch" in str(found).replace("\n", " ")
    assert "or register PyTorch&#x27;s decomposition" in found._repr_html_()
    record = json.loads(json.dumps(found.to_dict()))
    assert next(op for op in record["ops"] if op["op"] == "aten::softshrink")["suggestions"]
    assert all(op["suggestions"] == [] for op in record["ops"] if op["route"] != "fallback")


def test_a_vendors_own_decomposition_comes_after_its_kernels(vendors: Vendors) -> None:
    made = vendors(
        neg(dtypes=(torch.float64,)), Kernel("aten::mul.Tensor", named("mul", lambda x, y: x * y)), COPY
    )
    vendors.register(
        Brings(made.name, Decomposition("aten::neg", lambda x: torch.mul(x, torch.full_like(x, -1))))
    )
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        assert torch.neg(made.put(torch.ones(2))).cpu().tolist() == [-1, -1]
        assert torch.neg(made.put(torch.ones(2).double())).cpu().tolist() == [-1, -1]
    routes = {
        d.dtypes: (d.route, [str(r.reason) for r in d.rejected])
        for d in session.decisions
        if d.op == "aten::neg"
    }
    assert routes == {("float32",): ("decomposed", ["dtype"]), ("float64",): ("native", [])}
    assert {d.route for d in session.decisions if d.op == "aten::mul.Tensor"} == {"native"}


def test_a_decomposition_that_calls_itself_is_told(vendors: Vendors) -> None:
    made = vendors(neg(dtypes=(torch.float64,)))
    vendors.register(Brings(made.name, Decomposition("aten::neg", lambda x: torch.neg(x))))
    x = made.put(torch.ones(2))
    with flroute.enable(made.name, default_device=False):
        with pytest.raises(
            flroute.FlrouteError, match=r"decomposition of aten::neg .* calls aten::neg again"
        ):
            torch.neg(x)
        assert torch.neg(x.double()).dtype == torch.float64, "and what a kernel takes goes on"
    with pytest.raises(flroute.FlrouteError, match="calls aten::neg again"):
        torch.neg(x)
    with pytest.raises(flroute.FlrouteError, match="calls aten::neg again"):
        flroute.check(Call(torch.neg), torch.ones(2), made.name, backward=False)


def test_coverage_knows_registered_decompositions(vendors: Vendors) -> None:
    made: Made = vendors()

    def state() -> str:
        return next(str(op.state) for op in coverage_of(made.name).ops if op.op == "aten::softshrink")

    assert state() == "fallback"
    vendors.register(Brings(made.name, Decomposition("aten::softshrink")))
    assert state() == "decomposed"


@pytest.mark.parametrize(
    ("brought", "words"),
    [
        ("aten::neg", ["must be Decomposition objects", "'aten::neg'"]),
        (Decomposition("aten::softshrink", 3), ["must be a function, got 3"]),  # type: ignore[arg-type]
        (
            Decomposition("aten::mm"),
            ["PyTorch has no decomposition of aten::mm", "Decomposition('aten::mm', function)"],
        ),
    ],
)
def test_a_broken_decomposition_is_refused_by_name(brought: Any, words: list[str], vendors: Vendors) -> None:
    made = vendors()
    with pytest.raises(flroute.VendorError) as caught:
        vendors.register(Brings(made.name, brought), "bringer")
    assert (caught.value.plugin, caught.value.hook) == ("bringer", "flroute_decompositions")
    for word in words:
        assert word in str(caught.value)


def test_a_decomposition_of_an_op_of_another_release_does_no_harm(vendors: Vendors) -> None:
    made = vendors()
    vendors.register(Brings(made.name, Decomposition("aten::not_yet", torch.neg)))
    assert registry.load().decompositions[made.name] == {}


def test_backward_ops_are_placed_in_their_module(without_kernels: WithoutKernels) -> None:
    without_kernels("aten::gelu_backward")
    found = flroute.check(
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU())), torch.ones(2, 4), "reference"
    )
    (op,) = found.missing
    assert (op.op, op.module, op.phase) == ("aten::gelu_backward", "1.0", "backward")
    assert op.place == "the backward pass of 1.0"
