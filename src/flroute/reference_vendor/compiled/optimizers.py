"""Steps of optimizers over lists of tensors: numpy would read and write each tensor three times and more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from flroute.reference_vendor.compiled.launch import Array, Source, ceil_div, compiled_kernel
from flroute.reference_vendor.fused_optimizers import corrections, number, of_one_dtype
from flroute.reference_vendor.support import quiet
from flroute.vendor import Unsupported

BLOCK = 4096
Arrays = Sequence[Array]
_SOURCE = Source("optimizers", "common")


def _check(targets: Arrays, *lists: Arrays) -> None:
    """Raise Unsupported unless each target has an operand of its shape in every list; nothing is written before."""
    for others in lists:
        if len(others) != len(targets) or any(
            x.shape != y.shape for x, y in zip(targets, others, strict=True)
        ):
            raise Unsupported("lists of different lengths, or tensors of different shapes")


def _update(name: str, targets: Arrays, *lists: Arrays, scalars: Iterable[float]) -> None:
    """Run a kernel on each target, with its operands and its scalar."""
    _check(targets, *lists)
    for target, *others, scalar in zip(targets, *lists, scalars, strict=False):
        if target.size:
            blocks = ceil_div(target.size, BLOCK)
            _SOURCE.launch(name, blocks, target, *others, float(scalar), target.size, BLOCK=BLOCK)


@compiled_kernel("aten::_foreach_lerp_.Scalar", size="lerp_")
def lerp_(targets: Arrays, ends: Arrays, weight: float) -> None:
    _update("lerp", targets, ends, scalars=repeat(weight))


@compiled_kernel("aten::_foreach_addcmul_.Scalar", size="addcmul_")
def addcmul_(targets: Arrays, ys: Arrays, zs: Arrays, value: float = 1) -> None:
    _update("addcmul", targets, ys, zs, scalars=repeat(value))


@compiled_kernel("aten::_foreach_addcdiv_.Scalar", size="addcdiv_")
def addcdiv_(targets: Arrays, ys: Arrays, zs: Arrays, value: float = 1) -> None:
    _update("addcdiv", targets, ys, zs, scalars=repeat(value))


@compiled_kernel("aten::_foreach_addcdiv_.ScalarList", size="addcdiv_")
def addcdiv_list_(targets: Arrays, ys: Arrays, zs: Arrays, scalars: Sequence[float]) -> None:
    if len(scalars) != len(targets):
        raise Unsupported(f"{len(scalars)} scalars for {len(targets)} tensors")
    _update("addcdiv", targets, ys, zs, scalars=scalars)


def _plain(
    self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any,
    *, amsgrad: bool, grad_scale: Any = None, found_inf: Any = None, **_: Any,
) -> bool | str:  # fmt: skip
    if amsgrad:
        return "amsgrad"
    if grad_scale is not None or found_inf is not None:
        return "gradients that are scaled"
    return of_one_dtype(self, grads, exp_avgs, exp_avg_sqs)


def _step(
    lists: tuple[Arrays, ...], steps: Arrays, lr: float, beta1: float, beta2: float, eps: float,
    *, decay: float, shrink: float, maximize: bool,
) -> None:  # fmt: skip
    """``decay`` times the parameter is added to its gradient; before, it is multiplied by ``shrink``."""
    _check(*lists)
    if len(steps) != len(lists[0]):
        raise Unsupported(f"{len(steps)} steps for {len(lists[0])} tensors")
    corrected = [corrections(number(step), lr, beta1, beta2) for step in steps]
    for x, gradient, mean, square, (size, root) in zip(*lists, corrected, strict=True):
        if x.size:
            _SOURCE.launch(
                "adam", ceil_div(x.size, BLOCK), x, gradient, mean, square, decay, shrink, 1 - beta1, beta2, 1 - beta2, size,
                root, eps, x.size, SIGN=-1 if maximize else 1, DECAY=int(decay != 0), BLOCK=BLOCK,
            )  # fmt: skip


_adam = partial(compiled_kernel, size="adam_", dtypes=("float32", "float64"), when=_plain, mixed=True)


@_adam("aten::_fused_adam_", "aten::_fused_adam_.tensor_lr")
@quiet
def fused_adam_(
    self: Arrays, grads: Arrays, exp_avgs: Arrays, exp_avg_sqs: Arrays, max_exp_avg_sqs: Arrays, state_steps: Arrays,
    *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    lists = (self, grads, exp_avgs, exp_avg_sqs)
    _step(
        lists, state_steps, number(lr), beta1, beta2, eps, decay=weight_decay, shrink=1.0, maximize=maximize
    )


@_adam("aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr")
@quiet
def fused_adamw_(
    self: Arrays, grads: Arrays, exp_avgs: Arrays, exp_avg_sqs: Arrays, max_exp_avg_sqs: Arrays, state_steps: Arrays,
    *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    lists, shrink = (self, grads, exp_avgs, exp_avg_sqs), 1 - number(lr) * weight_decay
    _step(lists, state_steps, number(lr), beta1, beta2, eps, decay=0.0, shrink=shrink, maximize=maximize)
