"""Scaled dot product attention and its gradients: softmax(scale * q k^T + mask) v, for each head.

PyTorch reaches these two ops where its host would take its fused kernels; elsewhere attention is matrix products and a
softmax. Math: Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135, appendix B, without the tiling.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import torch

from flroute.reference_vendor.support import FLOAT_TYPES, Array, Result, narrow, quiet, reduce
from flroute.vendor import Unsupported, kernel


def one_float_type(query: torch.Tensor, *others: Any, **named: Any) -> bool | str:
    """float16 and bfloat16 have a float32 ``logsumexp``: PyTorch's own ops serve them."""
    tensors = (v for v in (*others, *named.values()) if isinstance(v, torch.Tensor))
    if query.dtype not in FLOAT_TYPES or any(t.dtype is not query.dtype for t in tensors):
        return f"a query of {query.dtype}"
    return True


def _by_key_head(x: Array, heads: int) -> Result:
    """Heads that share keys and values side by side: (batch, key heads, heads that share, positions, size)."""
    batch, every, positions, size = x.shape
    return x.reshape(batch, heads, every // heads, positions, size)


def check_shapes(query: Array, key: Array, value: Array, dropout_p: float) -> None:
    """Raise Unsupported for shapes that do not belong together, and for dropout, which the host never fuses."""
    fit = query.ndim == key.ndim == value.ndim == 4 and 0 not in query.shape and 0 not in key.shape
    fit = fit and query.shape[0] == key.shape[0] == value.shape[0] and query.shape[3] == key.shape[3]
    fit = fit and key.shape[1:3] == value.shape[1:3] and query.shape[1] % key.shape[1] == 0
    if not fit or dropout_p:
        raise Unsupported(f"attention of {query.shape} to {key.shape} and {value.shape}, dropout {dropout_p}")


def _scores(query: Array, key: Array, is_causal: bool, mask: Array | None, scale: float | None) -> Result:
    """How much each position attends to each other, before the softmax, by key head."""
    factor = query.dtype.type(1 / sqrt(query.shape[-1]) if scale is None else scale)
    grouped = _by_key_head(query, key.shape[1])
    scores = np.matmul(grouped * factor, key[:, :, None].swapaxes(-2, -1))
    if mask is not None:
        whole = np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))
        scores += _by_key_head(whole, key.shape[1])
    if is_causal:
        scores[..., ~np.tri(query.shape[2], key.shape[2], dtype=np.bool_)] = -np.inf
    return scores


@kernel("aten::_scaled_dot_product_flash_attention_for_cpu", when=one_float_type)
@quiet
def attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """The output, and the logarithm of each row's sum of exponentials. A row that sees nothing gives zeros."""
    check_shapes(query, key, value, dropout_p)
    weights = _scores(query, key, is_causal, attn_mask, scale)
    largest = reduce(np.maximum, weights, axis=-1, keepdims=True)
    largest[largest == -np.inf] = 0
    weights -= largest
    np.exp(weights, out=weights)
    total = reduce(np.add, weights, axis=-1, dtype=np.float64, keepdims=True)
    total[total == 0] = 1
    output = np.matmul(weights, value[:, :, None])
    output /= narrow(total, query)
    logsumexp = narrow(largest + np.log(total), query)
    return output.reshape(*query.shape[:3], value.shape[3]), logsumexp.reshape(query.shape[:3])


@kernel("aten::_scaled_dot_product_flash_attention_for_cpu_backward", when=one_float_type)
@quiet
def attention_backward(
    gradient: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    check_shapes(query, key, value, dropout_p)
    if gradient.shape != out.shape or out.shape != (*query.shape[:3], value.shape[3]):
        raise Unsupported(f"a gradient of {gradient.shape} for attention of {query.shape} to {value.shape}")
    heads = key.shape[1]
    weights = _scores(query, key, is_causal, attn_mask, scale)
    weights -= _by_key_head(logsumexp[..., None], heads)
    np.exp(weights, out=weights)
    upstream, grouped = _by_key_head(gradient, heads), _by_key_head(query, heads)
    for_value = _over_shared(weights, upstream)
    through_softmax = reduce(np.add, gradient * out, axis=-1, dtype=np.float64, keepdims=True)
    for_scores = np.matmul(upstream, value[:, :, None].swapaxes(-2, -1))
    for_scores -= _by_key_head(narrow(through_softmax, query), heads)
    for_scores *= weights
    for_scores *= query.dtype.type(1 / sqrt(query.shape[-1]) if scale is None else scale)
    for_query = np.matmul(for_scores, key[:, :, None]).reshape(query.shape)
    return for_query, _over_shared(for_scores, grouped), for_value


def _over_shared(weights: Array, rows: Array) -> Result:
    """``weights^T rows``, summed over the heads that share keys and values: they are more rows of one product."""
    batch, heads = weights.shape[:2]
    tall = weights.reshape(batch, heads, -1, weights.shape[-1])
    return np.matmul(tall.swapaxes(-2, -1), rows.reshape(batch, heads, -1, rows.shape[-1]))
