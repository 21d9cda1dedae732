"""The kernels of Triton's tutorials, written anew: what each tutorial teaches is in it, in the fewest words."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def fused_softmax(out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Persistent programs: each takes every ``num_programs``-th row."""
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        c = tl.arange(0, BLOCK)
        values = tl.load(x + row * x_stride + c, mask=c < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * out_stride + c, powers / tl.sum(powers, axis=0), mask=c < columns)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(
    configs=[
        triton.Config({"BM": 16, "BN": 32, "BK": 16, "GROUP": 4}, num_stages=3, num_warps=4),
        triton.Config({"BM": 32, "BN": 16, "BK": 32, "GROUP": 2}, num_stages=4, num_warps=2),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Programs in groups of rows, for the second-level cache's sake; an activation fused into the product."""
    number, across = tl.program_id(0), tl.cdiv(N, BN)
    in_group = GROUP * across
    first = number // in_group * GROUP
    height = min(tl.cdiv(M, BM) - first, GROUP)
    row, column = first + number % in_group % height, number % in_group // height
    tl.assume(row >= 0)
    tl.assume(column >= 0)
    rm, rn, rk = (row * BM + tl.arange(0, BM)) % M, (column * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    left = a + rm[:, None] * am + rk[None, :] * ak
    right = b + rk[:, None] * bk + rn[None, :] * bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = tl.load(left, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(right, mask=rk[:, None] < K - k * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK * ak
        right += BK * bk
    if ACTIVATION == "leaky_relu":
        total = leaky_relu(total)
    rm, rn = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    place = c + cm * rm[:, None] + cn * rn[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def dropout(x, keep, out, n, p, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    values, kept = tl.load(x + i, mask=mask), tl.load(keep + i, mask=mask)
    tl.store(out + i, tl.where(kept, values / (1 - p), 0.0), mask=mask)


@triton.jit
def seeded_dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    """The mask is never in memory: the seed and the element's number make it, forward and backward."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(tl.rand(seed, i) > p, values / (1 - p), 0.0), mask=i < n)


@triton.jit
def layer_norm_forward(x, out, w, b, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    """Rows longer than a block: three passes over each."""
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        sums += tl.load(x + c, mask=c < n, other=0.0).to(tl.float32)
    average = tl.sum(sums, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        off = tl.where(c < n, tl.load(x + c, mask=c < n, other=0.0).to(tl.float32) - average, 0.0)
        squares += off * off
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < n
        weight, bias = tl.load(w + c, mask=mask), tl.load(b + c, mask=mask)
        values = (tl.load(x + c, mask=mask, other=0.0).to(tl.float32) - average) * scale
        tl.store(out + c, values * weight + bias, mask=mask)


@triton.jit
def layer_norm_backward(
    dx, dy, dw, db, x, w, mean, rstd, lock, stride, n, GROUP: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The gradient of the input; of weight and bias, sums over rows of one group, under the group's lock."""
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    mask, group = c < n, row % GROUP
    lock += group
    written = lock + GROUP
    dw += group * n + c
    db += group * n + c
    values = tl.load(x + row * stride + c, mask=mask, other=0).to(tl.float32)
    gradient = tl.load(dy + row * stride + c, mask=mask, other=0).to(tl.float32)
    weight, scale = tl.load(w + c, mask=mask).to(tl.float32), tl.load(rstd + row)
    normal = tl.where(mask, (values - tl.load(mean + row)) * scale, 0.0)
    weighted = tl.where(mask, weight * gradient, 0.0)
    along, shared = tl.sum(normal * weighted, axis=0) / n, tl.sum(weighted, axis=0) / n
    tl.store(dx + row * stride + c, (weighted - (normal * along + shared)) * scale, mask=mask)
    of_weight, of_bias = (gradient * normal).to(weight.dtype), gradient.to(weight.dtype)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(written) == 0:
        tl.atomic_xchg(written, 1)
    else:
        of_weight += tl.load(dw, mask=mask)
        of_bias += tl.load(db, mask=mask)
    tl.store(dw, of_weight, mask=mask)
    tl.store(db, of_bias, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_of_groups(parts, out, groups, n, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, groups, BM):
        rows = start + tl.arange(0, BM)
        mask = (rows[:, None] < groups) & (columns[None, :] < n)
        total += tl.load(parts + rows[:, None] * n + columns[None, :], mask=mask, other=0.0)
    tl.store(out + columns, tl.sum(total, axis=0), mask=columns < n)


@triton.jit
def _attend(
    total, highest, sum_, q, keys, values, start_m, scale, rm, rn, base,
    BM: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """Blocks of keys left of the diagonal (stage 1), on it (2), or all of them (3)."""
    if STAGE == 1:
        low, high = 0, start_m * BM
    elif STAGE == 2:
        low, high = start_m * BM, (start_m + 1) * BM
        low = tl.multiple_of(low, BM)
    else:
        low, high = 0, S
    for first in tl.range(low, high, BN):
        start = tl.multiple_of(first, BN)
        scores = tl.dot(q, keys.load([base + start, 0]).T)
        if STAGE == 2:
            scores = scores * scale + tl.where(rm[:, None] >= start + rn[None, :], 0, -1.0e6)
            new = tl.maximum(highest, tl.max(scores, 1))
            scores -= new[:, None]
        else:
            new = tl.maximum(highest, tl.max(scores, 1) * scale)
            scores = scores * scale - new[:, None]
        weights = tl.math.exp2(scores)
        fade = tl.math.exp2(highest - new)
        total = total * fade[:, None]
        block = values.load([base + start, 0])
        total = tl.dot(weights.to(block.dtype), block, total)
        sum_ = sum_ * fade + tl.sum(weights, 1)
        highest = new
    return total, sum_, highest


@triton.jit
def fused_attention(
    q, k, v, out, logsumexp, scale, heads,
    S: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """Forward, through tensor descriptors made on the device."""
    tl.static_assert(BN <= D)
    start_m, head = tl.program_id(0), tl.program_id(1)
    base, length = head * S, heads * S
    queries = tl.make_tensor_descriptor(q, shape=[length, D], strides=[D, 1], block_shape=[BM, D])
    keys = tl.make_tensor_descriptor(k, shape=[length, D], strides=[D, 1], block_shape=[BN, D])
    values = tl.make_tensor_descriptor(v, shape=[length, D], strides=[D, 1], block_shape=[BN, D])
    target = tl.make_tensor_descriptor(out, shape=[length, D], strides=[D, 1], block_shape=[BM, D])
    rm, rn = start_m * BM + tl.arange(0, BM), tl.arange(0, BN)
    highest = tl.zeros([BM], dtype=tl.float32) - float("inf")
    sum_ = tl.zeros([BM], dtype=tl.float32) + 1.0
    total = tl.zeros([BM, D], dtype=tl.float32)
    scale *= 1.44269504  # of log2(e): powers are of two
    block = queries.load([base + start_m * BM, 0])
    if STAGE & 1:
        total, sum_, highest = _attend(
            total, highest, sum_, block, keys, values, start_m, scale, rm, rn, base, BM, BN, S, 4 - STAGE
        )
    if STAGE & 2:
        total, sum_, highest = _attend(
            total, highest, sum_, block, keys, values, start_m, scale, rm, rn, base, BM, BN, S, 2
        )
    tl.store(logsumexp + head * S + rm, highest + tl.math.log2(sum_))
    target.store([base + start_m * BM, 0], (total / sum_[:, None]).to(out.dtype.element_ty))
