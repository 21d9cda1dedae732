"""Compiled kernels that training needs: tables, losses and steps of optimizers, judged as the others are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import Function, check

import flroute
from support import decision_of, needs_triton

needs_triton()

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([1, 7, 64, 300, 1100]),
    count=st.integers(0, 90),
    index=st.sampled_from([torch.int64, torch.int32]),
    dtype=st.sampled_from(DTYPES),
    padding=st.sampled_from([-1, 0, 3]),
)
def test_gradients_of_a_table(
    rows: int, width: int, count: int, index: torch.dtype, dtype: torch.dtype, padding: int
) -> None:
    indices, gradient = (
        torch.randint(rows, (2, count), dtype=index),
        torch.randn(2, count, width, dtype=dtype),
    )
    if gradient.numel() >= 64:
        check(lambda g, i: aten.embedding_dense_backward(g, i, rows, padding, False), gradient, indices)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 300),
    classes=st.sampled_from([1, 5, 64, 1500]),
    reduction=st.sampled_from(["mean", "sum"]),
    ignored=st.sampled_from([-100, 0, 2]),
    dtype=st.sampled_from(DTYPES),
)
def test_cross_entropy(rows: int, classes: int, reduction: str, ignored: int, dtype: torch.dtype) -> None:
    x, target = torch.randn(rows, classes, dtype=dtype), torch.randint(classes, (rows,))
    if ignored < 0:
        target[::3] = ignored
    number = {"mean": 1, "sum": 2}[reduction]
    if rows * classes < 128:
        return
    check(lambda x, t: aten.nll_loss_forward(x, t, None, number, ignored), x, target)
    total = (target != ignored).sum().to(dtype)
    check(
        lambda g, x, t, w: aten.nll_loss_backward(g, x, t, None, number, ignored, w),
        torch.tensor(0.7, dtype=dtype), x, target, total,
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [50, -1])
def test_a_class_that_there_is_not_is_refused_as_on_the_host(wrong: int) -> None:
    indices, x = torch.tensor([1, wrong] * 40), torch.randn(80, 50)
    with pytest.raises(IndexError) as host:
        aten.nll_loss_forward(x, indices, None, 1, -100)
    with pytest.raises(IndexError) as ours:
        aten.nll_loss_forward(x.to("fl"), indices.to("fl"), None, 1, -100)
    assert str(ours.value) == str(host.value)


def test_a_gradient_for_a_row_that_there_is_not_is_refused() -> None:
    indices = torch.tensor([1, 50] * 40, device="fl")
    with pytest.raises(IndexError, match="index out of range in self"):
        aten.embedding_dense_backward(torch.randn(80, 24, device="fl"), indices, 50, -1, False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_of_dropout(dtype: torch.dtype) -> None:
    gradient = torch.randn(3, 5501, dtype=dtype)
    gradient[0, :9] = torch.nan
    mask = torch.rand(3, 5501) > 0.5
    check(lambda g, m: aten.native_dropout_backward(g, m, 1.25), gradient, mask)


@pytest.mark.parametrize("count", [3, 5])
def test_gradients_that_are_not_one_for_each_index_are_refused(count: int) -> None:
    indices, gradient = torch.tensor([1, 0, 2, 2]), torch.randn(count, 24)
    with pytest.raises(RuntimeError) as host:
        aten.embedding_dense_backward(gradient, indices, 5, -1, False)
    with pytest.raises(RuntimeError) as ours:
        aten.embedding_dense_backward(gradient.to("fl"), indices.to("fl"), 5, -1, False)
    assert str(ours.value) == str(host.value)


@pytest.mark.parametrize("wrong", [50, -1])
def test_the_gradient_for_a_class_that_there_is_not_is_refused(wrong: int) -> None:
    call = (torch.tensor(0.7), torch.randn(80, 50), torch.tensor([1, wrong] * 40))
    with pytest.raises(IndexError) as host:
        aten.nll_loss_backward(*call, None, 1, -100, torch.tensor(80.0))
    with pytest.raises(IndexError) as ours:
        aten.nll_loss_backward(*(t.to("fl") for t in call), None, 1, -100, torch.tensor(80.0, device="fl"))
    assert str(ours.value) == str(host.value)


def test_the_gradient_of_a_loss_is_of_one_dtype() -> None:
    x, target = torch.randn(80, 50, dtype=torch.float64), torch.arange(80) % 50
    for device in ("cpu", "fl"):
        gradient, total = (torch.tensor(v, device=device) for v in (0.7, 80.0))
        with pytest.raises(RuntimeError, match="expected scalar type Double but found Float"):
            aten.nll_loss_backward(gradient, x.to(device), target.to(device), None, 1, -100, total)


def test_nothing_times_an_infinite_scale_is_not_a_number() -> None:
    gradient, mask = torch.ones(3, 5501), torch.rand(3, 5501) > 0.5
    ours = aten.native_dropout_backward(gradient.to("fl"), mask.to("fl"), torch.inf)
    assert torch.equal(ours.cpu().isnan(), ~mask)


def in_place(op: Any, *scalars: Any) -> Function:
    """Of one target and its operands: the target after an op on lists of three of them."""

    def function(target: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        op([target, target[:0], target[:3]], *([x, x[:0], x[:3]] for x in others), *scalars)
        return target

    return function


STEPS: dict[str, tuple[Function, int]] = {
    "lerp": (in_place(torch._foreach_lerp_, 0.1), 1),
    "lerp from the end": (in_place(torch._foreach_lerp_, 0.7), 1),
    "addcmul": (in_place(torch._foreach_addcmul_, 0.3), 2),
    "addcdiv": (in_place(torch._foreach_addcdiv_, -0.3), 2),
    "addcdiv by a list": (in_place(torch._foreach_addcdiv_, [0.1, 0.2, 0.3]), 2),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str, dtype: torch.dtype) -> None:
    function, count = STEPS[name]
    check(function, *((torch.rand(41, 229) + 0.5).to(dtype) for _ in range(count + 1)))


def test_operands_of_another_shape_are_left_to_other_kernels() -> None:
    targets = [torch.zeros(1024, 4, device="fl"), torch.zeros(1024, 4, device="fl")]
    others = [torch.ones(1024, 4, device="fl"), torch.ones(4, device="fl")]
    with flroute.enable("reference", fallback="error", default_device=False) as session:
        torch._foreach_addcmul_(targets, others, others, 2.0)
    assert [float(t.sum()) for t in targets] == [8192.0, 8192.0]
    assert decision_of(session, "aten::_foreach_addcmul_.Scalar").kernel == "reference/numpy:addcmul_"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_adam(name: str, maximize: bool, dtype: torch.dtype) -> None:
    options = {
        "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": maximize,
    }  # fmt: skip

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        lists = [[t] for t in tensors]
        getattr(torch, name)(*lists[:4], [], [torch.tensor(3.0, device=tensors[0].device)], **options)
        return tensors[0], tensors[2], tensors[3]

    check(function, *(torch.rand(37, 251, dtype=dtype) + shift for shift in (-0.5, -0.5, -0.5, 0.1)))


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_a_run_of_the_optimizer_is_the_hosts(name: str) -> None:
    def run(device: str, **how: bool) -> torch.Tensor:
        torch.manual_seed(0)
        weight = torch.randn(40, 30).to(device).requires_grad_()
        optimizer = getattr(torch.optim, name)([weight], lr=0.01, weight_decay=0.05, **how)
        for _ in range(10):
            optimizer.zero_grad()
            (weight.sin() * weight).sum().backward()
            optimizer.step()
        return weight.detach().cpu()

    expected = run("cpu")
    for how in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        torch.testing.assert_close(run("fl", **how), expected)
