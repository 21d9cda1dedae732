"""Scaled dot product attention in the host's form: the fused op where the host fuses, split into ops that are routed.

PyTorch chooses between implementations in C++ and knows its own devices only; for any other it spells attention out. The
results are the same but for their strides, and on those depends whether ``y.transpose(1, 2).view(...)`` works. A vendor
that has fused kernels registers them for the two ``_scaled_dot_product_flash_attention_for_cpu`` ops.

Math: Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135, appendix B, without the tiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flroute.torch_compat import ATTENTION_TAKES_MASK_AND_CAUSAL, HOST_KEYS, boxed_redispatch, run_composite

aten = torch.ops.aten

_FUSED = 1  # SDPBackend.FLASH_ATTENTION
_empty_strided = boxed_redispatch(aten.empty_strided.default)
_choice = boxed_redispatch(aten._fused_sdp_choice.default)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``aten::scaled_dot_product_attention``: fused where the host would fuse, else PyTorch's composite."""
    options = {"scale": scale, "enable_gqa": enable_gqa}
    args = (query, key, value, attn_mask, dropout_p, is_causal)
    if not _host_fuses(*args, options):
        return run_composite(aten.scaled_dot_product_attention.default, args, options)  # type: ignore[no-any-return]
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        hidden = attn_mask.logical_not()
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(hidden, -math.inf)
    batched = query.dim() == 4
    if not batched:  # since PyTorch 2.14 the host fuses a single sequence of heads too, as a batch of one
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    fused = aten._scaled_dot_product_flash_attention_for_cpu
    output: Tensor = fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return output if batched else output.squeeze(0)


def _host_fuses(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    options: dict[str, Any],
) -> bool:
    """Whether the host would take the fused op; what it would refuse goes to the composite, which refuses it."""
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    if any(type(t) not in (Tensor, torch.nn.Parameter) or t.is_nested for t in tensors):
        return False  # while tracing, sizes may be symbols
    if mask is not None and (mask.requires_grad or mask.dtype not in (torch.bool, query.dtype)):
        return False
    if len({(t.dtype, t.device) for t in (query, key, value)}) > 1:
        return False
    if mask is not None and is_causal and not ATTENTION_TAKES_MASK_AND_CAUSAL:
        return False
    alike = [
        _empty_strided(HOST_KEYS, t.shape, t.stride(), dtype=t.dtype, device=torch.device("cpu"))
        for t in tensors
    ]
    host_mask = alike[3] if mask is not None else None
    return bool(_choice(HOST_KEYS, *alike[:3], host_mask, dropout_p, is_causal, **options) == _FUSED)


def wide(tensor: Tensor) -> Tensor:
    """In the precision in which the host accumulates."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, factor: float) -> Tensor:
    scores = (query * factor) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + wide(mask)
    if is_causal:
        hidden = torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype, device=scores.device)
        scores = scores + hidden.triu(1)
    return scores


def _for_each_head(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values for every head of the query: in grouped query attention several heads share one."""
    shared = query.shape[1] // tensor.shape[1]
    return tensor if shared == 1 else tensor.repeat_interleave(shared, 1)


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,  # noqa: ARG001 -- never fused with dropout
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The output, laid out as the query is, and the logarithm of each row's sum of exponentials."""
    wide_query, keys, values = (
        wide(query),
        _for_each_head(wide(key), query),
        _for_each_head(wide(value), query),
    )
    scores = _scores(wide_query, keys, is_causal, attn_mask, _factor(query, scale))
    largest = scores.amax(-1, keepdim=True)
    masked = largest == -math.inf  # a row that sees nothing: zeros, as on the host
    weights = (scores - largest.masked_fill(masked, 0.0)).exp()
    total = weights.sum(-1, keepdim=True).masked_fill(masked, 1.0)
    output = torch.empty_like(query).copy_((weights @ values) / total)
    logsumexp = (largest.masked_fill(masked, 0.0) + total.log()).squeeze(-1)
    return output, logsumexp.transpose(1, 2).contiguous().transpose(1, 2)


def fused_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,  # noqa: ARG001 -- never fused with dropout
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, the heads of each position side by side in memory."""
    grad, wide_query, factor = wide(grad_out), wide(query), _factor(query, scale)
    keys, values = _for_each_head(wide(key), query), _for_each_head(wide(value), query)
    scores = _scores(wide_query, keys, is_causal, attn_mask, factor)
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    through_softmax = (grad * wide(out)).sum(-1, keepdim=True)
    grad_scores = weights * (grad @ values.transpose(-2, -1) - through_softmax)
    return (
        _by_position(grad_scores @ keys * factor, query),
        _by_position(grad_scores.transpose(-2, -1) @ wide_query * factor, key),
        _by_position(weights.transpose(-2, -1) @ grad, value),
    )


def _by_position(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient of ``like``: summed over the heads that share it, contiguous but for heads and positions exchanged."""
    if grad.shape[1] != like.shape[1]:
        grad = grad.unflatten(1, (like.shape[1], -1)).sum(2)
    batch, heads, positions, size = like.shape
    made = torch.empty(batch, positions, heads, size, dtype=like.dtype, device=like.device).transpose(1, 2)
    return made.copy_(grad)


PARTS: dict[str, Callable[..., Any]] = {
    "aten::scaled_dot_product_attention": attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": fused_attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": fused_attention_backward,
}
"""By op: the function that splits it into ops which are routed one by one."""
