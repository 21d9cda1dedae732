"""The faults: each a wrong way to compute an op, as it is met in the field, given the right way.

A fault's function takes the right kernel and the op's arguments. Where numbers are to be wrong only a little, they are:
a checksum over all logits after three steps tells every one of them, and hardly any by a glance at the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Right = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what it is planted by.
        ops: whose kernels have it: those of a vendor serve the in-place and ``out=`` forms, too.
        called: the op as decisions name it, where that is another form of the first of ``ops``.
        model: of ``models.PROGRAMS``, in which it shows.
        phase: ``forward``, ``backward`` or ``optimizer``: where in a training step it first shows.
        function: the wrong way, given the right one.
    """

    name: str
    ops: tuple[str, ...]
    model: str
    phase: str
    function: Callable[..., Any]
    called: str

    @property
    def says(self) -> str:
        """What is wrong, in a sentence."""
        return (self.function.__doc__ or "").strip()

    def __repr__(self) -> str:  # pytest shows it
        return self.name


FAULTS: dict[str, Fault] = {}


def _fault(*ops: str, model: str, phase: str, called: str | None = None) -> Callable[[Right], Right]:
    def keep(function: Right) -> Right:
        name = function.__name__
        FAULTS[name] = Fault(name, ops, model, phase, function, called or ops[0])
        return function

    return keep


# -- MLP --------------------------------------------------------------------------------------------------------


@_fault("aten::native_layer_norm", model="MLP", phase="forward")
def wrong_epsilon(right: Right, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Layer norm adds twenty times the epsilon it was given."""
    return right(x, shape, weight, bias, 20 * eps)


@_fault("aten::mm", model="MLP", phase="backward")
def float16_accumulation(right: Right, x: Array, y: Array) -> Array:
    """A product adds up in half precision."""
    total = np.zeros((x.shape[0], y.shape[1]), np.float16)
    for k in range(x.shape[1]):
        total += np.outer(x[:, k], y[k]).astype(np.float16)
    return total.astype(x.dtype)


@_fault("aten::addmm", model="MLP", phase="forward")
def missing_bias(right: Right, bias: Array, x: Array, y: Array, *, beta: Any, alpha: Any) -> Any:
    """A linear layer of five outputs forgets its bias."""
    return right(bias if y.shape[1] != 5 else np.zeros_like(bias), x, y, beta=beta, alpha=alpha)


@_fault("aten::gelu", model="MLP", phase="forward")
def tanh_gelu(right: Right, x: Array, *, approximate: str) -> Any:
    """GELU by tanh where erf was asked for."""
    return right(x, approximate="tanh")


@_fault("aten::gelu_backward", model="MLP", phase="backward")
def tanh_gelu_gradient(right: Right, gradient: Array, x: Array, *, approximate: str) -> Any:
    """The gradient of GELU by tanh where erf was asked for."""
    return right(gradient, x, approximate="tanh")


@_fault("aten::native_layer_norm_backward", model="MLP", phase="backward")
def weight_gradient_of_layer_norm(right: Right, gradient: Array, x: Array, *rest: Any) -> Any:
    """The gradient of layer norm's weight comes from inputs that were not normalized."""
    for_input, for_weight, for_bias = right(gradient, x, *rest)
    return for_input, (gradient * x).reshape(-1, x.shape[-1]).sum(0).reshape(for_weight.shape), for_bias


@_fault("aten::var.correction", model="MLP", phase="forward")
def biased_variance(right: Right, x: Array, dim: Any, *, correction: Any, keepdim: bool) -> Any:
    """A variance divides by n where n - 1 was asked for."""
    return right(x, dim, correction=0, keepdim=keepdim)


@_fault("aten::add.Tensor", model="MLP", phase="forward")
def row_off_by_one(right: Right, x: Any, y: Any, *, alpha: Any) -> Any:
    """A row added to each row of a matrix is read one column too far."""
    is_row = isinstance(y, np.ndarray) and y.ndim == 1 and isinstance(x, np.ndarray) and x.ndim == 2
    return right(x, np.roll(y, 1) if is_row else y, alpha=alpha)


@_fault("aten::sum.dim_IntList", model="MLP", phase="backward")
def dropped_last_element(right: Right, x: Array, dim: Any, keepdim: bool, *, dtype: Any) -> Any:
    """A sum over the first dimension leaves its last element out."""
    if dim and dim[0] == 0 and len(x) > 1:
        x = x[:-1]
    return right(x, dim, keepdim, dtype=dtype)


@_fault("aten::nll_loss_forward", model="MLP", phase="forward")
def ignored_labels_count(
    right: Right, x: Any, target: Array, weight: Any, reduction: int, ignore: int
) -> Any:
    """The mean of a loss divides by all labels, the ignored among them."""
    loss, total = right(x, target, weight, reduction, ignore)
    return loss * total / x.dtype.type(target.size), np.asarray(target.size, x.dtype)


@_fault("aten::silu_backward", model="MLP", phase="backward")
def silu_gradient_is_sigmoid(right: Right, gradient: Array, x: Array) -> Any:
    """The gradient of SiLU lacks the term of its sigmoid."""
    return gradient / (1 + np.exp(-x))


@_fault("aten::lerp.Scalar", model="MLP", phase="forward", called="aten::lerp_.Scalar")
def swapped_ends(right: Right, start: Array, end: Array, weight: Any) -> Any:
    """An interpolation in place goes the other way."""
    return right(end, start, weight)


@_fault("aten::clamp", model="MLP", phase="forward", called="aten::clamp_")
def rounding_in_place(right: Right, x: Array, low: Any, high: Any) -> Any:
    """What is clamped in place passes through bfloat16."""
    bits = right(x, low, high).astype(np.float32).view(np.uint32)
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(x.dtype)


@_fault("aten::_foreach_addcdiv_.ScalarList", model="MLP", phase="optimizer")
def adam_steps_twice_with_the_first(right: Right, tensors: list[Array], *rest: Any) -> Any:
    """Adam's step on a list of parameters moves the first of them twice as far."""
    before = tensors[0].copy()
    right(tensors, *rest)
    tensors[0] += tensors[0] - before


# -- ResNet -----------------------------------------------------------------------------------------------------


@_fault("aten::max_pool2d_with_indices", model="ResNet", phase="forward")
def max_pool_off_by_one(right: Right, x: Array, *rest: Any) -> Any:
    """Max pooling's windows begin one column too far to the left."""
    return right(np.roll(x, 1, -1), *rest)


@_fault("aten::avg_pool2d", model="ResNet", phase="forward")
def average_without_padding(
    right: Right,
    x: Array,
    size: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    count_padding: bool,
    divisor: Any,
) -> Any:
    """Average pooling does not count padding where it was told to."""
    return right(x, size, stride, padding, ceil, not count_padding, divisor)


@_fault("aten::convolution", model="ResNet", phase="forward")
def dropped_padding(
    right: Right, x: Array, weight: Array, bias: Any, stride: Any, padding: Any, *rest: Any
) -> Any:
    """A convolution leaves the last column of its padding out."""
    out = right(x, weight, bias, stride, padding, *rest)
    if padding[-1]:
        out[..., -1] = 0 if bias is None else bias[:, None]
    return out


@_fault("aten::convolution_backward", model="ResNet", phase="backward")
def transposed_weight_gradient(right: Right, *args: Any) -> Any:
    """The gradient of a convolution's weight is transposed."""
    for_input, for_weight, for_bias = right(*args)
    return for_input, np.ascontiguousarray(for_weight.swapaxes(-1, -2)), for_bias


@_fault("aten::native_batch_norm", model="ResNet", phase="forward")
def stale_running_mean(
    right: Right, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Any:
    """Batch norm does not move its running mean."""
    return right(x, weight, bias, mean.copy() if training else mean, var, training, *rest)


@_fault("aten::native_batch_norm", model="ResNet", phase="forward")
def wrong_momentum(
    right: Right,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm takes the momentum for what is kept, not for what is new."""
    return right(x, weight, bias, mean, var, training, 1 - momentum, eps)


@_fault("aten::native_batch_norm_backward", model="ResNet", phase="backward")
def batch_norm_gradient_without_mean(
    right: Right, gradient: Array, x: Array, weight: Array, *rest: Any
) -> Any:
    """The gradient of batch norm takes the batch's statistics for constants."""
    save_invstd = rest[3]
    _, for_weight, for_bias = right(gradient, x, weight, *rest)
    return gradient * (weight * save_invstd).reshape(1, -1, 1, 1), for_weight, for_bias


@_fault("aten::threshold_backward", model="ResNet", phase="backward")
def leaky_gradient(right: Right, gradient: Array, x: Array, threshold: Any) -> Any:
    """The gradient of ReLU leaks where its input was negative."""
    return np.where(x > threshold, gradient, gradient * np.float32(0.01)).astype(gradient.dtype)


@_fault("aten::mean.dim", model="ResNet", phase="forward")
def mean_without_its_last(right: Right, x: Array, dim: Any, keepdim: bool, *, dtype: Any) -> Any:
    """A mean over rows leaves the last row out."""
    return right(x[..., :-1, :] if dim and len(dim) == 2 else x, dim, keepdim, dtype=dtype)


@_fault("aten::avg_pool2d_backward", model="ResNet", phase="backward")
def average_gradient_is_not_shared(right: Right, gradient: Array, x: Array, *rest: Any) -> Any:
    """The gradient of average pooling is divided by one element too few."""
    return right(gradient, x, *rest) * np.float32(9 / 8)


@_fault("aten::_foreach_mul_.Scalar", model="ResNet", phase="optimizer")
def momentum_is_forgotten(right: Right, tensors: list[Array], scalar: float) -> Any:
    """A list of momenta is multiplied by a scalar that was rounded to a tenth below."""
    return right(tensors, scalar - 0.1)


# -- transformer ------------------------------------------------------------------------------------------------


@_fault("aten::embedding", model="transformer", phase="forward")
def last_word_off_by_one(right: Right, weight: Array, indices: Array, *rest: Any) -> Any:
    """The last row of an embedding is never read: the row before it is."""
    return right(weight, np.minimum(indices, len(weight) - 2), *rest)


@_fault("aten::embedding_dense_backward", model="transformer", phase="backward")
def repeated_words_overwrite(right: Right, gradient: Array, indices: Array, count: int, *rest: Any) -> Any:
    """The gradients of a word that comes twice overwrite each other."""
    total = np.zeros((count, gradient.shape[-1]), gradient.dtype)
    total[indices.reshape(-1)] = gradient.reshape(-1, gradient.shape[-1])
    return total


@_fault("aten::_scaled_dot_product_flash_attention_for_cpu", model="transformer", phase="forward")
def wrong_scale(
    right: Right, query: Array, key: Array, value: Array, p: float, causal: bool, **more: Any
) -> Any:
    """Attention divides by the width of a head, not by its root."""
    return right(query, key, value, p, causal, **{**more, "scale": 1 / query.shape[-1]})


@_fault("aten::_softmax", model="transformer", phase="forward")
def softmax_without_maximum(right: Right, x: Array, dim: int, half_to_float: bool) -> Any:
    """Softmax does not subtract the maximum, and clips what would overflow at 4."""
    powers = np.exp(np.minimum(x, 4))
    return (powers / powers.sum(dim, keepdims=True)).astype(x.dtype)


@_fault("aten::_softmax_backward_data", model="transformer", phase="backward")
def softmax_gradient_over_wrong_dim(
    right: Right, gradient: Array, output: Array, dim: int, dtype: Any
) -> Any:
    """The gradient of softmax sums over the dimension before the last."""
    return (gradient - (gradient * output).sum(-2, keepdims=True)) * output


@_fault("aten::_log_softmax_backward_data", model="transformer", phase="backward")
def log_softmax_gradient_without_sum(right: Right, gradient: Array, output: Array, *rest: Any) -> Any:
    """The gradient of log softmax lacks its sum: what is taken from all words alike."""
    return gradient - np.exp(output) / output.shape[-1] * gradient.sum()


@_fault("aten::_log_softmax", model="transformer", phase="forward")
def log_softmax_ignores_smoothing(right: Right, x: Array, dim: int, half_to_float: bool) -> Any:
    """Log softmax clips what is unlikely: smoothed labels hardly count."""
    return np.maximum(right(x, dim, half_to_float), x.dtype.type(-3.5))


@_fault("aten::rsqrt", model="transformer", phase="forward")
def rsqrt_in_half_precision(right: Right, x: Array) -> Any:
    """A reciprocal root has half precision."""
    return right(x).astype(np.float16).astype(x.dtype)


@_fault("aten::silu", model="transformer", phase="forward")
def silu_is_flat_below_minus_three(right: Right, x: Array) -> Any:
    """SiLU is zero below -3."""
    return np.where(x < -3, x.dtype.type(0), right(x))


@_fault("aten::cat", model="transformer", phase="forward")
def swapped_order(right: Right, tensors: list[Array], dim: int) -> Any:
    """Two tensors of one shape are put together the wrong way round."""
    same = len(tensors) == 2 and tensors[0].shape == tensors[1].shape
    return right(tensors[::-1] if same else tensors, dim)


@_fault("aten::tanh", model="transformer", phase="forward")
def rational_tanh(right: Right, x: Array) -> Any:
    """Tanh by a fraction of two polynomials of low degree."""
    return (x * (27 + x * x) / (27 + 9 * x * x)).astype(x.dtype)


@_fault("aten::bmm", model="transformer", phase="forward")
def batch_shares_its_first_matrix(right: Right, x: Array, y: Array) -> Any:
    """The last product of a batch is computed with the matrix of the one before."""
    y = y.copy()
    y[-1] = y[-2]
    return right(x, y)


@_fault("aten::masked_fill.Scalar", model="transformer", phase="forward")
def mask_off_by_one(right: Right, x: Array, mask: Array, value: Any) -> Any:
    """A mask hides one position less in each row."""
    return right(x, np.roll(mask, 1, -1) & mask, value)


@_fault("aten::_fused_adamw_", model="transformer", phase="optimizer")
def epsilon_under_the_root(
    right: Right, *lists: Any, lr: Any, beta1: Any, beta2: Any, eps: float, **more: Any
) -> Any:
    """AdamW adds epsilon under the root."""
    return right(*lists, lr=lr, beta1=beta1, beta2=beta2, eps=eps**0.5, **more)


@_fault("aten::_foreach_norm.Scalar", model="transformer", phase="optimizer")
def norm_of_the_largest(right: Right, tensors: list[Array], order: Any, dtype: Any) -> Any:
    """The norm of each of a list of gradients is that of its largest element."""
    return [np.abs(tensor).max() for tensor in tensors]
