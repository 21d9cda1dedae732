"""What a kernel may be made of and be given: mapped functions, helpers, tuples, tensor descriptors; 8-bit floats are refused."""

from __future__ import annotations

import inspect

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from flroute.reference_vendor import triton_cpu


@triton.jit
def branching(a, b):
    if a > b:
        r = a * 2
    else:
        r = b
        for _ in range(2):
            if r > 3:
                r = r - 1
    return r, a


@triton.jit
def crossed(a, b, c, d):
    return a + d, b - c


@triton.jit
def early(a):
    if a > 0:
        if a > 1:
            return a
        a = a + 1
    else:
        a = a - 1
    return a * 2


@triton.jit
def mapped(x, out, n, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v = tl.load(x + i, mask=i < n, other=0)
    if OP == "branching":
        first, second = tl.map_elementwise(branching, v, v * v)
        r = first + second
    elif OP == "early":
        r = tl.map_elementwise(early, v)
    else:
        (r,) = tl.map_elementwise(crossed, v, v * 2, pack=2)
    tl.store(out + i, r, mask=i < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32], ids=str)
@settings(max_examples=10)
@given(n=st.integers(0, 64))
def test_a_mapped_function_branches_for_each_element(dtype: torch.dtype, n: int) -> None:
    x, out = (torch.randn(64) * 3).to(dtype), torch.full((64,), 9, dtype=dtype)
    mapped[(1,)](x, out, n, OP="branching", R=4, C=16)
    a, b = x[:n], x[:n] * x[:n]
    lowered = torch.where(b > 3, b - 1, b)
    lowered = torch.where(lowered > 3, lowered - 1, lowered)
    assert torch.equal(out[:n], torch.where(a > b, a * 2, lowered) + a)
    assert bool((out[n:] == 9).all())


def test_a_mapped_function_of_neighbours() -> None:
    x, out = torch.randn(64), torch.zeros(64)
    mapped[(1,)](x, out, 64, OP="crossed", R=4, C=16)
    a, b = x[0::2], x[1::2]
    assert torch.equal(out, torch.stack([a + 2 * b, b - 2 * a], 1).reshape(-1))


def test_a_mapped_function_that_returns_early_is_refused_with_its_line() -> None:
    with pytest.raises(
        triton_cpu.UnsupportedKernelError, match=r"map_elementwise at .*test_language.py:\d+: .*early"
    ):
        mapped[(1,)](torch.zeros(64), torch.zeros(64), 64, OP="early", R=4, C=16)


@triton.jit(noinline=True)
def power(base, exponent):
    if exponent < 0:
        return 0
    result = 1
    for _ in range(exponent):
        result = result * base
    return result


@triton.jit(noinline=True)
def power_and_one(base, exponent):
    return power(base, exponent) + 1


@triton.jit
def calls(out, exponent):
    tl.store(out + tl.program_id(0), power_and_one(tl.program_id(0), exponent))


@pytest.mark.parametrize("exponent", [-1, 0, 3])
def test_helpers_that_ask_not_to_be_inlined(exponent: int) -> None:
    out = torch.zeros(6, dtype=torch.int32)
    calls[(6,)](out, exponent)
    assert out.tolist() == [(k**exponent if exponent >= 0 else 0) + 1 for k in range(6)]


@triton.jit
def of_tuples(tensors, n, factors, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(tensors[0] + i, mask=i < n)
    tl.store(tensors[1][0] + i, v * factors[0] + factors[1], mask=i < n)


@settings(max_examples=15)
@given(n=st.integers(0, 70), factor=st.sampled_from([1, 2.5, 7]), term=st.sampled_from([0, 16, -0.5]))
def test_tuples_of_arguments(n: int, factor: float, term: float) -> None:
    x, out = torch.randn(70), torch.zeros(70)
    of_tuples[(5,)]((x, (out,)), n, (factor, term), BLOCK=16)
    torch.testing.assert_close(out[:n], x[:n] * factor + term)
    assert not out[n:].any()


def test_a_tensor_in_a_tuple_that_is_elsewhere() -> None:
    with pytest.raises(triton_cpu.LaunchError, match=r"of_tuples: the argument tensors\.1\.0 is on meta"):
        of_tuples[(1,)]((torch.zeros(8), (torch.zeros(8, device="meta"),)), 8, (2, 3), BLOCK=16)


@triton.jit
def halve(x, out, R: tl.constexpr, C: tl.constexpr):
    place = [tl.program_id(0) * R, tl.program_id(1) * C]
    out.store(place, x.load(place) / 2)


@triton.jit
def first_block(x, out, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + i, x.load([0, 0]))


@settings(max_examples=15)
@given(rows=st.integers(1, 20), columns=st.integers(1, 10).map(lambda n: 4 * n))
def test_tensor_descriptors_made_on_the_host(rows: int, columns: int) -> None:
    x, out = torch.randn(rows, columns + 4)[:, :columns], torch.zeros(rows, columns)
    blocks = [TensorDescriptor.from_tensor(t, [8, 16]) for t in (x, out)]
    halve[(triton.cdiv(rows, 8), triton.cdiv(columns, 16))](*blocks, R=8, C=16)
    assert torch.equal(out, x / 2)


def test_a_descriptor_says_what_is_beyond_the_tensor() -> None:
    x, out = torch.randn(3, 8), torch.zeros(8, 16)
    first_block[(1,)](TensorDescriptor.from_tensor(x, [8, 16], "nan"), out, R=8, C=16)
    assert torch.equal(out[:3, :8], x)
    assert out[3:].isnan().all()
    assert out[:, 8:].isnan().all()


def test_a_descriptor_whose_tensor_is_elsewhere() -> None:
    x = TensorDescriptor.from_tensor(torch.zeros(8, 16, device="meta"), [8, 16])
    with pytest.raises(triton_cpu.LaunchError, match="first_block: the argument x is on meta"):
        first_block[(1,)](x, torch.zeros(128), R=8, C=16)


@triton.jit
def through_eight_bits(x):
    v = tl.load(x)
    tl.store(x, v.to(tl.float8e5).to(v.dtype))


@pytest.mark.parametrize("kind", ["float8_e5m2", "float8_e4m3fn"])
def test_eight_bit_floats_are_refused_before_anything_runs(kind: str) -> None:
    x = torch.zeros(128, dtype=getattr(torch, kind))
    with pytest.raises(triton.CompilationError, match=r"def first_block(.|\n)*fp8e\w+ not supported"):
        first_block[(1,)](x, x, R=8, C=16)
    line = (
        inspect.getsource(through_eight_bits.fn)
        .splitlines()
        .index("    tl.store(x, v.to(tl.float8e5).to(v.dtype))")
    )
    with pytest.raises(triton.CompilationError, match=rf"at {line}:.*(.|\n)*float8e5(.|\n)*not supported"):
        through_eight_bits[(1,)](torch.zeros(1))
