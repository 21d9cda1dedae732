"""Gradients added up into the rows of a table."""

import triton
import triton.language as tl


@triton.jit
def embedding_backward(gradient, indices, table, wrong, count, rows, width, padding, BLOCK: tl.constexpr):
    """A program adds all gradients to its columns of the table, one after the other, as the host does."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    for at in range(count):
        index = tl.load(indices + at).to(tl.int64)
        known = (index >= 0) & (index < rows)
        if known == 0:
            tl.store(wrong, 1)
        place = table + index * width + column
        adds = inside & known & (index != padding)
        sums = tl.load(place, mask=adds, other=0.0) + tl.load(
            gradient + at * width + column, mask=adds, other=0.0
        )
        tl.store(place, sums, mask=adds)
