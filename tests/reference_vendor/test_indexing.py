from __future__ import annotations

from typing import Any

import pytest
import torch
from against_host import EVERY, FLOATS, INTEGERS, agree, broadcastable, given, overload, run, values
from hypothesis import strategies as st

import flroute

DTYPES = [*FLOATS, *INTEGERS, torch.bool]
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


@st.composite
def picking(draw: st.DrawFn, shape: tuple[int, ...]) -> list[torch.Tensor | None]:
    """Indices for a tensor of ``shape``: nothing, a mask, int32 or int64, negative ones among them; those that are not masks
    broadcast."""
    indices: list[torch.Tensor | None] = []
    common = draw(st.sampled_from([(), (2,), (3, 2)]))
    if draw(st.booleans()) and len(shape) > 1:
        mask = draw(values(shape[:2], torch.bool))
        return [mask, *([None] * draw(st.integers(0, len(shape) - 2)))]
    for size in shape:
        if draw(st.booleans()):
            indices.append(None)
            continue
        own = common if draw(st.booleans()) else common[1:]
        dtype = draw(st.sampled_from([torch.int32, torch.int64]))
        indices.append(torch.randint(-size, size, own, dtype=dtype))
    if not any(i is not None for i in indices):
        indices[0] = torch.tensor([0])
    return indices


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_index(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    agree("aten::index.Tensor", x, data.draw(picking(tuple(x.shape))))


def test_indices_that_are_not_neighbours_come_first() -> None:
    x, i, j = torch.randn(2, 3, 4), torch.tensor([[0], [1]]), torch.tensor([1, -1, 0])
    agree("aten::index.Tensor", x, [i, None, j])
    agree("aten::index.Tensor", x, [None, i, j])
    agree("aten::index.Tensor", torch.empty(0, 3), [torch.empty(0, dtype=torch.int64)])


@given(data=st.data(), dtype=st.sampled_from(EVERY), accumulate=st.booleans())
def test_index_put(data: Any, dtype: torch.dtype, accumulate: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    indices = data.draw(picking(tuple(x.shape)))
    shape = overload("aten::index.Tensor")(x, indices).shape
    if (
        not accumulate
        and sum(i is not None for i in indices)
        and indices[0] is not None
        and indices[0].dtype != torch.bool
    ):
        shape = torch.Size([])  # which of the values for one place stays is not defined
    source = data.draw(values(tuple(shape[1:]), dtype))
    agree("aten::index_put", x, indices, source, accumulate)
    target = x.clone(memory_format=torch.preserve_format)
    run("aten::_index_put_impl_", target, indices, source, accumulate)
    agree_in_place = overload("aten::index_put")(x, indices, source, accumulate)
    torch.testing.assert_close(target, agree_in_place, equal_nan=True)


@pytest.mark.parametrize("bad", [3, -4])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_out_of_range_writes_nothing(bad: int, accumulate: bool) -> None:
    x = torch.zeros(3, 2)
    for indices in ([torch.tensor([0, bad])], [torch.tensor([0, bad]), torch.tensor([0, 1])]):
        with pytest.raises(IndexError, match=str(bad)):
            run("aten::index.Tensor", x, indices)
        with pytest.raises(IndexError, match=str(bad)):
            run("aten::_index_put_impl_", x, indices, torch.tensor(1.0), accumulate)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        run("aten::_index_put_impl_", x, [torch.tensor([0, 1])], torch.ones(3), False)
    with pytest.raises(IndexError, match="shape of the mask"):
        run("aten::index.Tensor", x, [torch.ones(2, dtype=torch.bool)])
    assert not x.any()


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_index_select_and_gather(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)), dtype))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    agree("aten::index_select", x, dim, torch.randint(0, x.shape[dim], (data.draw(st.integers(0, 5)),)))
    smaller = [data.draw(st.integers(1, size)) for size in x.shape]
    agree("aten::gather", x, dim, torch.randint(0, x.shape[dim], smaller))


@pytest.mark.parametrize("index", [-1, 3])
def test_indices_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match="index out of range in self"):
        run("aten::index_select", torch.ones(3), 0, torch.tensor([index]))
    with pytest.raises(RuntimeError, match="out of bounds for dimension 0 with size 3"):
        run("aten::gather", torch.ones(3), 0, torch.tensor([index]))
    with pytest.raises(RuntimeError, match="out of bounds"):
        run("aten::scatter.src", torch.ones(3), 0, torch.tensor([index]), torch.ones(1))
    with pytest.raises(RuntimeError, match="out of bounds"):
        run("aten::index_add", torch.ones(3), 0, torch.tensor([index]), torch.ones(1))
    for op in ("aten::index_copy", "aten::index_reduce"):
        with pytest.raises(IndexError, match="out of"):
            run(
                op,
                torch.ones(3),
                0,
                torch.tensor([index]),
                torch.ones(1),
                *(("prod",) if "reduce" in op else ()),
            )
    for op in ("aten::take", "aten::put"):
        with pytest.raises(IndexError, match="out of"):
            run(
                op, torch.ones(3), torch.tensor([index * 4]), *((torch.ones(1),) if op == "aten::put" else ())
            )


@given(data=st.data(), dtype=st.sampled_from(EVERY), scalar=st.booleans())
def test_writing_along_a_dimension(data: Any, dtype: torch.dtype, scalar: bool) -> None:
    x = data.draw(values(() if scalar else data.draw(SHAPES), dtype))
    dim = data.draw(st.integers(-max(x.ndim, 1), max(x.ndim, 1) - 1))
    size = x.shape[dim] if x.ndim else 1
    index = torch.randperm(size)[: data.draw(st.integers(1 if scalar else 0, size))]
    shape = list(x.shape)
    if not scalar:
        shape[dim] = index.numel()
    source = data.draw(values(tuple(shape), dtype))
    agree("aten::index_copy", x, dim, index, source)
    agree("aten::index_fill.int_Scalar", x, dim, index - size, True if dtype is torch.bool else 2)
    agree("aten::index_fill.int_Tensor", x, dim, index, torch.tensor(1, dtype=dtype))
    if dtype is not torch.float16:
        agree("aten::index_add", x, dim, index, source)
        agree("aten::index_add", x, dim, index, source, alpha=True if dtype is torch.bool else 2)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), include_self=st.booleans())
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_reductions_into_places(data: Any, dtype: torch.dtype, include_self: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype, special=True))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    shape = [data.draw(st.integers(1, size)) for size in x.shape]
    shape[dim] = data.draw(st.integers(0, 4))
    source = data.draw(values(tuple(shape), dtype))
    index = torch.randint(0, x.shape[dim], shape)
    agree("aten::scatter_add", x, dim, index, source)
    for reduce in ("sum", "prod", "amax", "amin", "mean"):
        if not (dtype is torch.bool and reduce == "mean"):
            agree("aten::scatter_reduce.two", x, dim, index, source, reduce, include_self=include_self)
    shape = [shape[dim] if i == dim % x.ndim else n for i, n in enumerate(x.shape)]
    source, index = data.draw(values(tuple(shape), dtype)), index.flatten()[: shape[dim]]
    if dtype is not torch.bool and index.numel() == shape[dim]:
        for reduce in ("prod", "amax", "amin", "mean"):
            agree("aten::index_reduce", x, dim, index, source, reduce, include_self=include_self)


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_scatter(data: Any, dtype: torch.dtype) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    smaller = [data.draw(st.integers(1, size)) for size in x.shape]
    index = torch.rand(x.shape).argsort(dim)[tuple(map(slice, smaller))]  # no place twice
    agree("aten::scatter.src", x, dim, index, data.draw(values(tuple(x.shape), dtype)))
    agree("aten::scatter.value", x, dim, index, True if dtype is torch.bool else 2)
    agree("aten::scatter.src", x, dim, torch.empty(0, dtype=torch.int64), x)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_numbers_scatter_and_gather(shape: tuple[int, ...]) -> None:
    x, index = torch.tensor(1.0), torch.zeros(shape, dtype=torch.int64)
    agree("aten::gather", x, 0, index)
    agree("aten::gather", torch.ones(2), 0, index)
    agree("aten::scatter.src", x, 0, index, torch.full(shape, 2.0))
    agree("aten::scatter_add", x, 0, index, torch.full(shape, 2.0))


@given(data=st.data(), dtype=st.sampled_from(EVERY), accumulate=st.booleans())
def test_take_and_put(data: Any, dtype: torch.dtype, accumulate: bool) -> None:
    x = data.draw(values(data.draw(SHAPES), dtype))
    index = torch.randperm(x.numel())[: data.draw(st.integers(0, x.numel()))] - data.draw(
        st.sampled_from([0, x.numel()])
    )
    agree("aten::take", x, index)
    if not (accumulate and dtype is torch.float16):
        agree("aten::put", x, index, data.draw(values(tuple(index.shape), dtype)), accumulate)


@given(data=st.data(), dtype=st.sampled_from(EVERY))
def test_masks(data: Any, dtype: torch.dtype) -> None:
    x, y = data.draw(broadcastable(dtype, special=False))
    mask = data.draw(values(tuple(y.shape), torch.bool))
    agree("aten::masked_fill.Scalar", x, mask, float("-inf") if dtype.is_floating_point else 1)
    agree("aten::masked_fill.Tensor", x, mask, torch.tensor(1, dtype=dtype))
    agree("aten::masked_select", x, mask)
    count = torch.broadcast_to(mask, torch.broadcast_shapes(x.shape, mask.shape)).sum()
    agree("aten::masked_scatter", x, mask, data.draw(values((int(count) + 1,), dtype)))
    agree("aten::nonzero", x)
    for size in (0, 1, 20):
        agree("aten::nonzero_static", x, size=size)
        agree("aten::nonzero_static", x, size=size, fill_value=7)


def test_a_source_too_short_for_its_mask() -> None:
    with pytest.raises(RuntimeError, match="the source has 1 elements, fewer than the 2"):
        run("aten::masked_scatter", torch.zeros(2), torch.tensor([True, True]), torch.ones(1))


def test_bfloat16_moves_as_it_is() -> None:
    """Through the device: numpy has no bfloat16."""
    x, index = torch.randn(3, 4).bfloat16(), torch.tensor([2, 0])
    mask = torch.rand(3, 4) > 0.5
    with flroute.enable(device="reference", fallback="error"):
        y, i = x.to("fl"), index.to("fl")
        answers = [
            y[i],
            y.flip(0),
            y.index_fill(0, i, 1.5),
            y.roll(1),
            torch.cat([y, y]),
            y.masked_fill(mask.to("fl"), -1.0),
        ]
        written = y.clone()
        written[i] = y[:2]
        out = torch.take(y, i, out=torch.empty(0, dtype=torch.bfloat16, device="fl"))
    z = x.clone()
    z[index] = x[:2]
    expected = [
        x[index],
        x.flip(0),
        x.index_fill(0, index, 1.5),
        x.roll(1),
        torch.cat([x, x]),
        x.masked_fill(mask, -1.0),
    ]
    for answer, want in zip([*answers, written, out], [*expected, z, x.take(index)], strict=True):
        assert torch.equal(answer.cpu(), want)
        assert answer.dtype is torch.bfloat16


@pytest.mark.parametrize("x", [torch.tensor(0.0), torch.ones(3), torch.eye(3)])
def test_nonzero_lays_out_its_indices_by_columns(x: torch.Tensor) -> None:
    with flroute.enable(device="reference", fallback="error"):
        made = torch.nonzero(x.to("fl"))
        out = torch.nonzero(x.to("fl"), out=torch.empty(0, dtype=torch.int64, device="fl"))
    expected = torch.nonzero(x)
    assert made.stride() == out.stride() == expected.stride()
    assert torch.equal(made.cpu(), expected)
    assert torch.equal(out.cpu(), expected)
