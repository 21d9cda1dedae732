from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_host import FLOATS, agree, chosen, overload, run
from torch.utils._python_dispatch import TorchDispatchMode

import flroute
from flroute.vendor import Unsupported

LISTS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("add_.List", ("list",), {"alpha": -0.01}),
    ("add_.List", ("list",), {}),
    ("add_.Scalar", (1e-8,), {}),
    ("add_.Tensor", (torch.tensor(2.0),), {"alpha": 1.0}),
    ("sub_.List", ("list",), {"alpha": 2}),
    ("mul_.Scalar", (0.9,), {}),
    ("mul_.Tensor", (torch.tensor(0.5),), {}),
    ("mul_.List", ("list",), {}),
    ("div_.Scalar", (3,), {}),
    ("div_.List", ("list",), {}),
    ("div_.ScalarList", ([2.0, 3.0],), {}),
    ("lerp_.Scalar", ("list", 0.1), {}),
    ("lerp_.Scalar", ("list", 0.9), {}),
    ("addcmul_.Scalar", ("list", "list", 0.001), {}),
    ("addcdiv_.Scalar", ("list", "list", -0.01), {}),
    ("addcdiv_.ScalarList", ("list", "list", [-0.1, 0.2]), {}),
    ("maximum_.List", ("list",), {}),
    ("sqrt_", (), {}),
    ("neg_", (), {}),
    ("reciprocal_", (), {}),
    ("zero_", (), {}),
]


def _tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.rand(4, 3, dtype=dtype).t() + 0.5, torch.rand((), dtype=dtype) + 0.5]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "rest", "named"), LISTS)
def test_in_place(name: str, rest: tuple[Any, ...], named: dict[str, Any], dtype: torch.dtype) -> None:
    targets = _tensors(dtype)
    args = [
        _tensors(dtype) if a == "list" else a.to(dtype) if isinstance(a, torch.Tensor) else a for a in rest
    ]
    expected, addresses = [t.clone() for t in targets], [t.data_ptr() for t in targets]
    overload(f"aten::_foreach_{name}")(expected, *args, **named)
    assert run(f"aten::_foreach_{name}", targets, *args, **named) is None
    assert addresses == [t.data_ptr() for t in targets]
    torch.testing.assert_close(targets, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functional(dtype: torch.dtype) -> None:
    xs, ys = _tensors(dtype), _tensors(dtype)
    agree("aten::_foreach_add.List", xs, ys, alpha=0.1)
    agree("aten::_foreach_add.Scalar", xs, 0.1)
    agree("aten::_foreach_sub.Scalar", xs, 0.1)
    agree("aten::_foreach_mul.Scalar", xs, 0.1)
    agree("aten::_foreach_mul.List", xs, ys)
    agree("aten::_foreach_mul.ScalarList", xs, [0.1, 0.2])
    agree("aten::_foreach_div.List", xs, ys)
    agree("aten::_foreach_addcmul.Scalar", xs, ys, ys, -1)
    agree("aten::_foreach_sqrt", xs)
    agree("aten::_foreach_neg", xs)


def test_norm() -> None:
    for dtype in FLOATS:
        agree("aten::_foreach_norm.Scalar", _tensors(dtype), 2.0)
    with pytest.raises(Unsupported):
        run("aten::_foreach_norm.Scalar", _tensors(torch.float32), 1.0)


def test_lists_of_different_lengths_are_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::_foreach_add_.List", _tensors(torch.float32), _tensors(torch.float32)[:1])


class Kernels(TorchDispatchMode):
    """Runs an optimizer's ops on the kernels, on host tensors, and notes those that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op, kwargs = str(func).replace("aten.", "aten::").removesuffix(".default"), kwargs or {}
        if chosen(op, args, kwargs):
            answer = run(op, *args, **kwargs)
            if op.endswith("_") or "_." in op:
                return args[0] if func._schema.returns else None
            return (
                [torch.from_numpy(r) for r in answer] if isinstance(answer, list) else torch.as_tensor(answer)
            )
        functional = op.removesuffix("_").replace("_.", ".")
        if "foreach" not in op and functional != op and chosen(functional, args, kwargs):
            return args[0].copy_(torch.as_tensor(run(functional, *args, **kwargs)))
        if "foreach" in op:
            self.missing.add(op)
        return func(*args, **kwargs)


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.AdamW, {"amsgrad": True}),
]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_optimizers_take_the_same_steps(optimizer: Any, options: dict[str, Any], foreach: bool) -> None:
    def train(mode: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]
        steps = optimizer(parameters, lr=0.01, foreach=foreach, **options)
        for _ in range(4):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            with mode:
                steps.step()
        return [p.detach() for p in parameters]

    mode = Kernels()
    torch.testing.assert_close(train(mode), train(torch.no_grad()), rtol=1e-6, atol=1e-7)
    assert not mode.missing


SHARING: dict[str, Callable[[torch.Tensor], Any]] = {
    "the same tensor twice": lambda x: torch._foreach_add_([x, x], [x, x]),
    "the next reads what is written": lambda x: torch._foreach_mul_([x[:8], x[8:16]], [x[8:16], x[:8]]),
    "overlapping ones": lambda x: torch._foreach_mul_([x[:9], x[6:]], 2.0),
    "a number for each": lambda x: torch._foreach_mul_([x, x[3:]], [2.0, 3.0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHARING)
def test_tensors_that_share_memory_are_written_one_after_the_other(name: str, dtype: torch.dtype) -> None:
    host = (torch.arange(20) / 16).to(dtype)
    ours = host.to("fl")
    with flroute.enable("reference", fallback="error", default_device=False):
        for _ in range(3):
            SHARING[name](host)
            SHARING[name](ours)
    torch.testing.assert_close(ours.cpu(), host)
