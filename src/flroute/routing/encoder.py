"""The fast path of ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` in eval, split into ops that are routed.

PyTorch's modules take it on any device named by a backend, but only its own devices implement these ops.

Math: the docs of the two modules; what a mask means, and when weights are returned, is
aten/src/ATen/native/transformers/attention.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu

from flroute.errors import DeviceError

_OF_PAIRS, _OF_KEYS = (
    0,
    1,
)  # mask_type: (queries, keys), or (batch, keys); else it has the shape of the scores


def _heads(x: Tensor, count: int) -> Tensor:
    """(batch, positions, width) as (batch, heads, positions, size)."""
    batch, positions, width = x.shape
    return x.view(batch, positions, count, width // count).transpose(1, 2)


def _hidden(mask: Tensor, mask_type: int | None) -> Tensor:
    """Where not to look, shaped to meet the scores."""
    if mask_type is None:
        raise RuntimeError("_native_multi_head_attention: Mask Type should be defined")
    hidden = mask.bool()
    return hidden[:, None, None, :] if mask_type == _OF_KEYS else hidden


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of each head, side by side and projected; and the weights. A row that sees nothing is NaN, as on the host."""
    if query is key and key is value:
        parts = linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        layers = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        parts = tuple(linear(x, weight, bias) for x, weight, bias in layers)
    q, k, v = (_heads(part, num_head) for part in parts)
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(_hidden(mask, mask_type), -math.inf)
    weights = scores.softmax(-1)
    output = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``nn.TransformerEncoderLayer`` in eval: each part around a shortcut, normalized before or after."""

    def attend(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return multi_head_attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(inner) if use_gelu else relu(inner), ffn_weight_2, ffn_bias_2)

    def normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), weight, bias, eps)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attend(normalized(src, *first))
        return x + feed_forward(normalized(x, *second))
    x = normalized(src + attend(src), *first)
    return normalized(x + feed_forward(x), *second)


def packs_padding(t: Tensor, mask: Tensor) -> bool:  # noqa: ARG001 -- the op's own arguments
    """Whether an encoder may put sentences without their padding into a nested tensor: no, this device has none.

    Encoders then compute the padding, too, which PyTorch's nested tensors turn into zeros.
    """
    return False


def pack_without_padding(t: Tensor, mask: Tensor, mask_check: bool = True) -> Tensor:  # noqa: ARG001 -- the op's own
    """What an encoder asks for unasked if it is told not to check its masks."""
    raise DeviceError(
        f"aten::_nested_tensor_from_mask on {t.device}: the device has no nested tensors. An nn.TransformerEncoder asks for one "
        f"if mask_check=False: leave it at True, or make the encoder with enable_nested_tensor=False"
    )


PARTS: dict[str, Callable[..., Any]] = {
    "aten::_native_multi_head_attention": multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
    "aten::_nested_tensor_from_mask_left_aligned": packs_padding,
    "aten::_nested_tensor_from_mask": pack_without_padding,
}
"""By op: the function that splits it into ops which are routed one by one."""
