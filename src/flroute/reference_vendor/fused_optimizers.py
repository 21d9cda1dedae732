"""Whole optimizer steps in one op, for ``fused=True``, and what gradient scaling asks for.

Each follows the documentation of its optimizer in ``torch.optim``. Long tensors are worked on a block at a time, so that a
step reads and writes memory once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.blocks import pieces
from flroute.reference_vendor.support import FLOATS, Array, quiet
from flroute.vendor import Unsupported, kernel

Arrays = Sequence[Array]
Tensors = Sequence[torch.Tensor]


def of_one_dtype(self: Tensors, *others: Tensors) -> bool | str:
    """Whether each parameter has its place in every list, and all are of one dtype: the host refuses any other call."""
    if any(len(tensors) != len(self) for tensors in others):
        return "lists of different lengths"
    dtypes = {tensor.dtype for tensors in (self, *others) for tensor in tensors}
    return len(dtypes) == 1 or "mixed dtypes: " + ", ".join(sorted(map(str, dtypes)))


def _sgd_fits(
    self: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, momentum: float, **_: Any
) -> bool | str:
    return of_one_dtype(self, grads, *([momentum_buffer_list] if momentum else []))


def _adam_fits(
    self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors, state_steps: Tensors,
    *, amsgrad: bool, **_: Any,
) -> bool | str:  # fmt: skip
    if len(state_steps) != len(self):
        return "lists of different lengths"
    return of_one_dtype(self, grads, exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else []))


def _adagrad_fits(
    self: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, **_: Any
) -> bool | str:
    return len(state_steps) == len(self) and of_one_dtype(self, grads, state_sums)


def number(value: Any) -> float:
    """A number that may come as an array of one element, whatever its dimensions.

    Raises:
        Unsupported: the array has not one element, which the host says best.
    """
    if isinstance(value, np.ndarray) and value.size != 1:
        raise Unsupported(f"a number of shape {value.shape}")
    return float(value.item() if isinstance(value, np.ndarray) else value)


def _steps(found_inf: Array | None, *lists: Arrays) -> Iterator[tuple[Array, ...]]:
    """The tensors of each parameter, in pieces; none at all where the scaler found an overflow."""
    if found_inf is not None and number(found_inf) == 1:
        return
    for arrays in zip(*lists, strict=True):
        yield from pieces(*arrays)


def _gradient(gradient: Array, x: Array, grad_scale: Array | None, *, maximize: bool, decay: float) -> Array:
    """The gradient to descend along; the scale is taken out of the stored one, too."""
    if grad_scale is not None:
        np.true_divide(gradient, gradient.dtype.type(number(grad_scale)), out=gradient)
    if maximize:
        gradient = np.negative(gradient)
    return gradient if decay == 0 else gradient + x * decay


def _lerp_(start: Array, end: Array, weight: float) -> None:
    """``start += weight * (end - start)``, from the nearer end, as in ``elementwise.lerp``."""
    if weight < 0.5:
        np.add(start, (end - start) * weight, out=start)
    else:
        np.subtract(end, (end - start) * (1 - weight), out=start)


@kernel("aten::_fused_adam_", "aten::_fused_adam_.tensor_lr", dtypes=FLOATS, mixed=True, when=_adam_fits)
@quiet
def fused_adam_(
    self: Arrays, grads: Arrays, exp_avgs: Arrays, exp_avg_sqs: Arrays, max_exp_avg_sqs: Arrays, state_steps: Arrays,
    *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    """Kingma and Ba, "Adam"; with ``amsgrad`` Reddi et al., "On the convergence of Adam and beyond"."""
    lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else exp_avg_sqs)
    corrected = [corrections(number(step), number(lr), beta1, beta2) for step in state_steps]
    for at, (size, root) in enumerate(corrected):
        for x, stored, mean, square, largest in _steps(
            found_inf, *[tensors[at : at + 1] for tensors in lists]
        ):
            gradient = _gradient(stored, x, grad_scale, maximize=maximize, decay=weight_decay)
            _adam(x, gradient, mean, square, largest, size, root, beta1, beta2, eps)


@kernel("aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr", dtypes=FLOATS, mixed=True, when=_adam_fits)
@quiet
def fused_adamw_(
    self: Arrays, grads: Arrays, exp_avgs: Arrays, exp_avg_sqs: Arrays, max_exp_avg_sqs: Arrays, state_steps: Arrays,
    *, lr: Any, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    """Loshchilov and Hutter, "Decoupled weight decay regularization": what Adam does, of parameters made smaller first."""
    shrink, _ = 1 - number(lr) * weight_decay, [number(step) for step in state_steps]
    for (x,) in _steps(found_inf, self):
        np.multiply(x, shrink, out=x)
    fused_adam_(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr=lr, beta1=beta1, beta2=beta2, weight_decay=0,
        eps=eps, amsgrad=amsgrad, maximize=maximize, grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip


def corrections(step: float, lr: float, beta1: float, beta2: float) -> tuple[float, float]:
    """The step size over the bias of the mean, and the root of the bias of the squares.

    Where there is no bias, before the first step, say, they are infinite or not a number.
    """
    size = np.float64(lr) / (1 - np.float64(beta1) ** step)
    return float(size), float(np.sqrt(1 - np.float64(beta2) ** step))


def _adam(
    x: Array, gradient: Array, mean: Array, square: Array, largest: Array, size: float, root: float,
    beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    """``x -= size * mean / (sqrt(largest) / root + eps)`` after the two averages; ``largest`` may be ``square`` itself."""
    _lerp_(mean, gradient, 1 - beta1)
    np.multiply(square, beta2, out=square)
    np.add(square, gradient * gradient * (1 - beta2), out=square)
    if largest is not square:
        np.maximum(largest, square, out=largest)
    scale = np.asarray(np.sqrt(largest))
    np.true_divide(scale, root, out=scale)
    np.add(scale, eps, out=scale)
    np.true_divide(mean, scale, out=scale)
    np.multiply(scale, size, out=scale)
    np.subtract(x, scale, out=x)


@kernel("aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr", dtypes=FLOATS, mixed=True, when=_sgd_fits)
@quiet
def fused_sgd_(
    self: Arrays, grads: Arrays, momentum_buffer_list: Arrays,
    *, weight_decay: float, momentum: float, lr: Any, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    """With momentum, the first step sets the buffer to the gradient; dampening begins with the second."""
    rate = number(lr)
    for x, stored, *buffers in _steps(found_inf, self, grads, *([momentum_buffer_list] if momentum else [])):
        gradient = _gradient(stored, x, grad_scale, maximize=maximize, decay=weight_decay)
        for buffer in buffers:
            if is_first_step:
                buffer[...] = gradient
            else:
                np.multiply(buffer, momentum, out=buffer)
                np.add(buffer, gradient * (1 - dampening), out=buffer)
            gradient = gradient + buffer * momentum if nesterov else buffer
        np.subtract(x, gradient * rate, out=x)


@kernel("aten::_fused_adagrad_", dtypes=FLOATS, mixed=True, when=_adagrad_fits)
@quiet
def fused_adagrad_(
    self: Arrays, grads: Arrays, state_sums: Arrays, state_steps: Arrays,
    *, lr: float, lr_decay: float, weight_decay: float, eps: float, maximize: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> None:  # fmt: skip
    """Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning"."""
    rates = [float(lr / np.float64(1 + (number(step) - 1) * lr_decay)) for step in state_steps]
    for at, rate in enumerate(rates):
        for x, stored, total in _steps(
            found_inf, self[at : at + 1], grads[at : at + 1], state_sums[at : at + 1]
        ):
            gradient = _gradient(stored, x, grad_scale, maximize=maximize, decay=weight_decay)
            np.add(total, gradient * gradient, out=total)
            np.subtract(x, gradient / (np.sqrt(total) + eps) * rate, out=x)


# -- gradient scaling ---------------------------------------------------------------------------------


@kernel("aten::_amp_foreach_non_finite_check_and_unscale_", dtypes=FLOATS, mixed=True)
@quiet
def unscale_(self: Arrays, found_inf: Array, inv_scale: Array) -> None:
    """Multiply every gradient by ``inv_scale``; ``found_inf`` becomes 1 if one of them is not finite."""
    for gradient in self:
        if not np.isfinite(gradient).all():
            found_inf[...] = 1
        np.multiply(gradient, gradient.dtype.type(inv_scale), out=gradient)


@kernel("aten::_amp_update_scale_", when=lambda self, *_: str(self.dtype) == "torch.float32")
@quiet
def update_scale_(
    self: Array, growth_tracker: Array, found_inf: Array, scale_growth_factor: float, scale_backoff_factor: float,
    growth_interval: int,
) -> None:  # fmt: skip
    """Less after an overflow; more after ``growth_interval`` steps without one, unless that overflows itself."""
    if float(found_inf):
        self[...] = self * scale_backoff_factor
        growth_tracker[...] = 0
        return
    growth_tracker[...] = growth_tracker + 1
    if int(growth_tracker) == growth_interval:
        grown = self * self.dtype.type(scale_growth_factor)
        if np.isfinite(grown):
            self[...] = grown
        growth_tracker[...] = 0
