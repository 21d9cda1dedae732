"""Scaled dot product attention, some queries at a time: their scores stay in a core's cache, and are never all there.

The products are the host's BLAS; what comes between them is one pass. Math: Dao et al., FlashAttention,
https://arxiv.org/abs/2205.14135, tiled over queries alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from flroute.reference_vendor.attention import check_shapes, one_float_type
from flroute.reference_vendor.compiled.launch import Array, Source, block_of
from flroute.reference_vendor.compiled.rows import LONGEST_ROW
from flroute.reference_vendor.compiled.sizes import FEWEST_SCORES
from flroute.reference_vendor.memory import empty
from flroute.vendor import Unsupported, kernel

SCORES = 1 << 16
"""Elements of a block of scores."""
KEYS = 1024
_SOURCE = Source("attention", "rows", "common")


@dataclass(frozen=True)
class _Block:
    """Some queries of one head, and the keys that they may see."""

    batch: int
    head: int
    key_head: int
    queries: slice
    keys: slice

    @property
    def here(self) -> tuple[int, int, slice]:
        """Where its rows are, in what has one for each query."""
        return self.batch, self.head, self.queries

    @property
    def there(self) -> tuple[int, int, slice]:
        """Where its rows are, in what has one for each key."""
        return self.batch, self.key_head, self.keys


class _Scores:
    """The scores of one attention, block by block, in memory that is used again."""

    def __init__(
        self, query: Array, key: Array, is_causal: bool, mask: Array | None, scale: float | None
    ) -> None:
        self.query, self.key, self.is_causal = query, key, is_causal
        self.scale = float(1 / sqrt(query.shape[-1]) if scale is None else scale)
        self.mask = mask if mask is None else np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))
        self.step = min(max(1, SCORES // key.shape[2]), query.shape[2])
        if key.shape[2] > LONGEST_ROW:
            raise Unsupported(f"{key.shape[2]} keys")

    def room(self) -> Array:
        """Memory for one block's scores."""
        return np.empty(self.step * self.key.shape[2], self.query.dtype)

    def blocks(self) -> Iterator[_Block]:
        """All of them; those of one key head come one after the other."""
        batches, heads, queries, _ = self.query.shape
        shared, keys = heads // self.key.shape[1], self.key.shape[2]
        for batch in range(batches):
            for head in range(heads):
                for start in range(0, queries, self.step):
                    stop = min(start + self.step, queries)
                    seen = min(keys, stop) if self.is_causal else keys
                    yield _Block(batch, head, head // shared, slice(start, stop), slice(0, seen))

    def of(self, block: _Block, room: Array) -> Array:
        """The products of a block's queries and keys."""
        queries, keys = self.query[block.here], self.key[block.there]
        scores = room[: len(queries) * len(keys)].reshape(len(queries), len(keys))
        np.matmul(queries, keys.T, out=scores)
        return scores

    def launch(
        self, name: str, block: _Block, *arrays: Array, logsumexp: Array, more: tuple[Array, ...] = ()
    ) -> None:
        """Run a kernel on a block: each of ``arrays`` has a row of scores for each of its queries."""
        rows, n = arrays[0].shape
        mask = (
            arrays[0] if self.mask is None else self.mask[block.batch, block.head, block.queries.start :, :]
        )
        strides = (0, 0) if self.mask is None else (stride // mask.itemsize for stride in mask.strides)
        _SOURCE.launch(
            name, rows, *arrays, mask, logsumexp, *more, *strides, logsumexp.strides[0] // logsumexp.itemsize,
            block.queries.start, n, self.scale,
            CAUSAL=self.is_causal, MASK=self.mask is not None, BLOCK=block_of(n),
        )  # fmt: skip


def _by_position(batch: int, heads: int, positions: int, *size: int, like: Array) -> Array:
    """A new array of (batch, heads, positions, *size), the heads of each position side by side, as on the host."""
    return empty((batch, positions, heads, *size), like.dtype).swapaxes(1, 2)


def _many_scores(query: Any, key: Any, *rest: Any, **named: Any) -> bool | str:
    scores = query.shape[-2] * key.shape[-2] if query.ndim == key.ndim == 4 else 0
    if scores < FEWEST_SCORES:
        return f"is for {FEWEST_SCORES} scores or more in each head, and here are {scores}"
    return one_float_type(query, key, *rest, **named)


def _many_scores_backward(gradient: Any, query: Any, key: Any, *rest: Any, **named: Any) -> bool | str:
    return _many_scores(query, key, gradient, *rest, **named)


@kernel("aten::_scaled_dot_product_flash_attention_for_cpu", when=_many_scores)
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
    scores = _Scores(query, key, is_causal, attn_mask, scale)
    batch, heads, queries, _ = query.shape
    output = np.empty_like(query, shape=(*query.shape[:3], value.shape[3]))  # laid out as the query is
    logsumexp = _by_position(batch, heads, queries, like=query)
    room = scores.room()
    for block in scores.blocks():
        weights = scores.of(block, room)
        scores.launch("softmax", block, weights, logsumexp=logsumexp[block.here])
        _product(weights, value[block.there], output[block.here])
    return output, logsumexp


def _product(weights: Array, values: Array, out: Array) -> None:
    """``weights @ values``: the sum of products of so many keys each, since one long sum in float32 loses more."""
    np.matmul(weights[:, :KEYS], values[:KEYS], out=out)
    for start in range(KEYS, len(values), KEYS):
        out += np.matmul(weights[:, start : start + KEYS], values[start : start + KEYS])


@kernel("aten::_scaled_dot_product_flash_attention_for_cpu_backward", when=_many_scores_backward)
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
    scores = _Scores(query, key, is_causal, attn_mask, scale)
    for_query, for_key, for_value = (_by_position(*x.shape, like=x) for x in (query, key, value))
    for_key.fill(0)
    for_value.fill(0)
    through = np.einsum("bhqe,bhqe->bhq", gradient, out, dtype=np.float64).astype(query.dtype, order="C")
    room, more_room = scores.room(), scores.room()
    for block in scores.blocks():
        weights, upstream = scores.of(block, room), gradient[block.here]
        slopes = more_room[: weights.size].reshape(weights.shape)
        np.matmul(upstream, value[block.there].T, out=slopes)
        scores.launch(
            "softmax_backward",
            block,
            weights,
            slopes,
            logsumexp=logsumexp[block.here],
            more=(through[block.here],),
        )
        _product(slopes, key[block.there], for_query[block.here])
        for_key[block.there] += np.matmul(slopes.T, query[block.here])
        for_value[block.there] += np.matmul(weights.T, upstream)
    return for_query, for_key, for_value
