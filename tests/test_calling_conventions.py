"""One functional kernel serves the op, its in-place form and its ``out=`` form; results are as the host's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flroute
from flroute.vendor import Kernel, Unsupported
from support import COPY, Made, Vendors, decision_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

CALLS: dict[str, list[tuple[Any, ...]]] = {}
"""Arguments that the kernels below received, by kernel."""


def record(name: str, *arguments: Any) -> None:
    CALLS.setdefault(name, []).append(arguments)


def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    record("add", a, b, alpha)
    if isinstance(b, float) and a.dtype.kind == "i":
        raise Unsupported("promotion is for the host")
    return a + alpha * b


def max_dim(x: Any, dim: Any, keepdim: Any = False) -> Any:
    record("max_dim", x, dim, keepdim)
    indices = np.expand_dims(x.argmax(axis=dim), dim)
    values = np.take_along_axis(x, indices, dim)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def cat(tensors: Any, dim: Any = 0) -> Any:
    record("cat", tensors, dim)
    return np.concatenate(tensors, axis=dim)


def foreach_add(self: Any, other: Any, *, alpha: Any = 1) -> Any:
    record("foreach_add", self, other, alpha)
    return [a + alpha * b for a, b in zip(self, other, strict=True)]


def foreach_mul_(self: Any, scalar: Any) -> None:
    record("foreach_mul_", self, scalar)
    for x in self:
        np.multiply(x, scalar, out=x)


def fill_(x: Any, value: Any) -> None:
    x[...] = value


def neg(x: Any) -> Any:
    return np.negative(x)


def clone(x: Any, *, memory_format: Any = None) -> Any:
    record("clone", x, memory_format)
    return x.copy()


KERNELS = (
    Kernel("aten::add.Tensor", add, dtypes=(torch.float32, torch.float64, torch.int64)),
    Kernel("aten::max.dim", max_dim),
    Kernel("aten::cat", cat),
    Kernel("aten::_foreach_add.List", foreach_add),
    Kernel("aten::_foreach_mul_.Scalar", foreach_mul_),
    Kernel("aten::fill_.Scalar", fill_),
    Kernel("aten::neg", neg),
    Kernel("aten::clone", clone),
    COPY,
)


@pytest.fixture
def made(vendors: Vendors) -> Made:
    CALLS.clear()
    return vendors(*KERNELS)


def native(session: flroute.Session, op: str) -> bool:
    return decision_of(session, op).route == "native"


# -- in place and out= ---------------------------------------------------------------------------------------------


def test_a_functional_kernel_serves_the_in_place_op(made: Made) -> None:
    x = made.put(torch.ones(2, 3))
    row, version, pointer = x[1], x._version, x.data_ptr()
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        result = x.add_(made.put(torch.tensor([1.0, 2.0, 3.0])), alpha=2)
    assert result is x
    assert x.tolist() == [[3, 5, 7]] * 2
    assert row.tolist() == [3, 5, 7], "views see it"
    assert (x._version, x.data_ptr()) == (version + 1, pointer)
    assert native(session, "aten::add_.Tensor")
    assert decision_of(session, "aten::add_.Tensor").kernel == f"{made.name}/python:add"


def test_in_place_through_a_view_reaches_only_the_view(made: Made) -> None:
    x = made.put(torch.zeros(3, 4))
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        x[:, 1].add_(made.put(torch.ones(3)))
        x.t()[2].add_(made.put(torch.full((3,), 2.0)))
    assert x.tolist() == [[0, 1, 2, 0]] * 3
    assert native(session, "aten::add_.Tensor")


def test_a_functional_kernel_serves_out(made: Made) -> None:
    a, out = made.put(torch.ones(3)), made.put(torch.zeros(3))
    pointer, version = out.data_ptr(), out._version
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        result = torch.add(a, a, alpha=3, out=out)
    assert result is out
    assert (out.tolist(), out.data_ptr(), out._version) == ([4, 4, 4], pointer, version + 1)
    assert native(session, "aten::add.out")


def test_out_of_another_float_dtype_is_cast(made: Made) -> None:
    a, out = made.put(torch.full((2,), 1.5)), made.put(torch.zeros(2, dtype=torch.float64))
    with flroute.enable(made.name, fallback="allow", default_device=False):
        assert torch.add(a, a, out=out) is out
    assert (out.dtype, out.tolist()) == (torch.float64, [3, 3])


def test_out_that_aliases_an_input(made: Made) -> None:
    a = made.put(torch.tensor([1.0, 2.0]))
    with flroute.enable(made.name, fallback="error", default_device=False):
        torch.add(a, a, out=a)
    assert a.tolist() == [2, 4]


def test_a_strided_out_keeps_its_strides_and_what_lies_between(made: Made) -> None:
    base = made.put(torch.zeros(3, 4))
    a = made.put(torch.ones(3, 2))
    with flroute.enable(made.name, fallback="allow", default_device=False):
        torch.add(a, a, out=base[:, ::2])
    assert base.tolist() == [[2, 0, 2, 0]] * 3


@pytest.mark.parametrize("start", [(0,), (5,), (2, 2), (1, 7)])
def test_out_of_another_shape_is_resized_as_on_the_host(start: tuple[int, ...], made: Made) -> None:
    host_out = torch.zeros(start)
    out, a = made.put(host_out), made.put(torch.ones(2, 3))
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        torch.add(torch.ones(2, 3), 1.0 * torch.ones(3), out=host_out)
    with (
        flroute.enable(made.name, fallback="allow", default_device=False),
        warnings.catch_warnings(record=True) as got,
    ):
        warnings.simplefilter("always")
        assert torch.add(a, made.put(torch.ones(3)), out=out) is out
    assert (out.shape, out.stride(), out.tolist()) == (host_out.shape, host_out.stride(), host_out.tolist())
    assert [w.category for w in got] == [w.category for w in expected], "a warning where the host warns"


@pytest.mark.parametrize(
    "call",
    [
        lambda put: torch.add(
            put(torch.ones(2)), put(torch.ones(2)), out=put(torch.zeros(2, dtype=torch.int64))
        ),
        lambda put: put(torch.ones(3)).add_(put(torch.ones(2, 3))),
        lambda put: put(torch.ones(2, dtype=torch.int64)).add_(2.5),
        lambda put: torch.add(put(torch.ones(2)), put(torch.ones(3))),
        lambda put: put(torch.ones(2)).add_(put(torch.ones(3))),
        lambda put: torch.add(put(torch.ones(2)), put(torch.ones(3)), out=put(torch.zeros(2))),
    ],
    ids=["cast", "broadcast in place", "cast in place", "shapes", "shapes in place", "shapes out"],
)
def test_a_call_the_host_refuses_is_refused_in_its_words(call: Callable[..., Any], made: Made) -> None:
    with pytest.raises(RuntimeError) as expected:
        call(lambda host: host)
    with flroute.enable(made.name, fallback="allow", default_device=False):
        for _ in range(2):
            with pytest.raises(RuntimeError) as got:
                call(made.put)
    assert type(got.value) is type(expected.value)
    if "cast" not in str(expected.value):
        assert str(expected.value) in str(got.value)


OVERLAPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place on an expanded view": lambda x: x[:1].expand(3, 3).add_(x),
    "out that is expanded": lambda x: torch.add(x, x, out=x[:1].expand(3, 3)),
    "in place, an argument half over the target": lambda x: x.flatten()[1:4].add_(x.flatten()[:3]),
    "out half over an argument": lambda x: torch.add(x.flatten()[:3], x[2], out=x.flatten()[1:4]),
    "copy into an expanded view": lambda x: x[:1].expand(3, 3).copy_(x.t()),
    "fill of an expanded view": lambda x: x[:1].expand(3, 3).fill_(1),
}
"""Calls that write one place in memory twice, or read what they have written."""


@pytest.mark.parametrize("what", OVERLAPS)
@pytest.mark.parametrize("vendor", ["made", "reference", "opaque"])
def test_a_target_that_overlaps_is_refused_as_on_the_host(what: str, vendor: str, made: Made) -> None:
    host = torch.arange(9.0).view(3, 3)
    device = made.device if vendor == "made" else flroute.device(vendor)
    x = host.to(device)
    expected = outcome(OVERLAPS[what], host)
    for _ in range(2):
        got = outcome(OVERLAPS[what], x)
        assert (type(got), str(got)) == (type(expected), str(expected))
    assert torch.equal(x.cpu(), host)


def outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Exception | None:
    try:
        call(x)
    except RuntimeError as error:
        return error
    return None


def test_nothing_is_written_when_the_result_does_not_fit(made: Made) -> None:
    x, wide = made.put(torch.ones(3)), made.put(torch.ones(2, 3))
    whole = made.put(torch.ones(2, dtype=torch.int64))
    with flroute.enable(made.name, fallback="allow", default_device=False):
        with pytest.raises(RuntimeError):
            x.add_(wide)
        with pytest.raises(RuntimeError):
            torch.add(made.put(torch.ones(2)), made.put(torch.ones(2)), out=whole)
    assert (x.tolist(), x.shape) == ([1, 1, 1], (3,))
    assert whole.tolist() == [1, 1]


def test_no_output_is_written_if_one_of_several_does_not_fit(made: Made) -> None:
    x = made.put(torch.tensor([[1.0, 5.0], [7.0, 2.0]]))
    values = made.put(torch.zeros(2))
    with (
        flroute.enable(made.name, fallback="allow", default_device=False),
        pytest.raises(RuntimeError),
    ):  # indices are int64
        torch.max(x, 1, out=(values, made.put(torch.zeros(2))))
    assert values.tolist() == [0, 0]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_that_grows_takes_its_views_along(made: Made) -> None:
    x = made.put(torch.tensor([[1.0, 5.0], [7.0, 2.0]]))
    values, shared = made.put(torch.zeros(2)), made.put(torch.zeros(1, dtype=torch.int64))
    view = shared[:]
    with flroute.enable(made.name, fallback="allow", default_device=False):
        torch.max(x, 1, out=(values, shared))
    assert (values.tolist(), shared.tolist(), view.tolist()) == ([5, 7], [1, 0], [1])


# -- several outputs, lists, keywords --------------------------------------------------------------------------------


def test_several_outputs(made: Made) -> None:
    host = torch.tensor([[1.0, 5.0, 3.0], [7.0, 2.0, 6.0]])
    x = made.put(host)
    values, indices = made.put(torch.zeros(0)), made.put(torch.zeros(0, dtype=torch.int64))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for keepdim in (False, True, False):
            got = torch.max(x, 1, keepdim=keepdim)
            expected = torch.max(host, 1, keepdim=keepdim)
            assert got.values.tolist() == expected.values.tolist()
            assert got.indices.tolist() == expected.indices.tolist()
            assert got.indices.dtype == torch.int64
        torch.max(x, 0, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([7, 5, 6], [1, 0, 1])
    assert decision_of(session, "aten::max.dim").calls == 3
    assert native(session, "aten::max.dim_max")


def test_a_list_of_tensors_in(made: Made) -> None:
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        result = torch.cat([made.put(torch.ones(1, 2)), made.put(torch.zeros(2, 2))])
    assert result.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert native(session, "aten::cat")
    (tensors, dim) = CALLS["cat"][0]
    assert isinstance(tensors, list)
    assert [type(t) for t in tensors] == [np.ndarray] * 2
    assert dim == 0


def test_a_list_of_tensors_out(made: Made) -> None:
    a = [made.put(torch.ones(2)), made.put(torch.ones(2, 2))]
    b = [made.put(torch.full((2,), 2.0)), made.put(torch.full((2, 2), 3.0))]
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        result = torch._foreach_add(a, b, alpha=2)
    assert [r.tolist() for r in result] == [[5, 5], [[7, 7], [7, 7]]]
    assert native(session, "aten::_foreach_add.List")


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
def test_a_list_written_in_place_bumps_version_counters_once(in_session: bool, made: Made) -> None:
    a = [made.put(torch.ones(2)), made.put(torch.ones(3))]
    versions = [t._version for t in a]
    if in_session:
        with flroute.enable(made.name, fallback="error", default_device=False):
            torch._foreach_mul_(a, 3.0)
    else:
        torch._foreach_mul_(a, 3.0)
    assert [t.tolist() for t in a] == [[3, 3], [3, 3, 3]]
    assert [t._version for t in a] == [v + 1 for v in versions]


def test_a_kernel_that_writes(made: Made) -> None:
    x = made.put(torch.zeros(2, 3))
    version = x._version
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        assert x[:, 1].fill_(4) is not None
    assert x.tolist() == [[0, 4, 0]] * 2
    assert x._version == version + 1
    assert native(session, "aten::fill_.Scalar")


def test_arguments_arrive_as_the_schema_says(made: Made) -> None:
    a = made.put(torch.arange(6.0).reshape(2, 3))
    b = made.put(torch.ones(2, dtype=torch.float32))
    with flroute.enable(made.name, fallback="error", default_device=False):
        torch.add(a.t(), b, alpha=2)
        scalar_tensor = torch.tensor(2.0)  # the array aliases it
        torch.add(a, scalar_tensor)
        torch.add(a, 5)
    (x, y, alpha), (_, scalar_array, _), (_, scalar, default) = CALLS["add"]
    assert isinstance(x, np.ndarray)
    assert (x.shape, x.strides, y.shape, alpha) == ((3, 2), (4, 12), (2,), 2)
    assert isinstance(scalar_array, np.ndarray)
    assert (scalar_array.shape, float(scalar_array)) == ((), 2.0)
    assert (scalar, default) == (5, 1)
    assert isinstance(scalar, int)


def test_arrays_alias_the_tensors(made: Made) -> None:
    a = made.put(torch.zeros(4))
    with flroute.enable(made.name, fallback="error", default_device=False):
        torch.add(a, a)
    assert CALLS["add"][0][0].ctypes.data == a.data_ptr()


@pytest.mark.parametrize("vendor", ["reference", "opaque"])
@pytest.mark.parametrize("op", [torch.add, torch.maximum, torch.mul])
def test_an_empty_out_is_laid_out_as_on_the_host(op: Callable[..., Any], vendor: str) -> None:
    device = torch.device(str(flroute.device(vendor)))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    expected = op(x.t(), y.t(), out=torch.empty(0))
    out = op(x.to(device).t(), y.to(device).t(), out=torch.empty(0, device=device))
    assert (out.stride(), expected.stride()) == ((1, 4), (1, 4))
    assert torch.equal(out.cpu(), expected)


# -- what results look like ------------------------------------------------------------------------------------------


def strided(host: torch.Tensor, how: str) -> torch.Tensor:
    """``host``'s values in another memory layout."""
    if how == "channels_last":
        return host.to(memory_format=torch.channels_last)
    if how == "transposed":
        return host.transpose(1, 3)
    if how == "every second":
        return host[:, :, ::2]
    if how == "expanded":
        return host[:, :1].expand(host.shape)
    return host


LAYOUTS = ["plain", "channels_last", "transposed", "every second", "expanded"]


@pytest.mark.parametrize("how", LAYOUTS)
def test_results_have_the_hosts_strides(how: str, made: Made) -> None:
    host, other = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    x, y = strided(host, how), strided(other, how)
    expected = [torch.neg(x), torch.add(x, y), torch.add(x, y[..., :1])]
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        on_x, on_y = strided(made.put(host), how), strided(made.put(other), how)
        assert on_x.stride() == x.stride()
        for _ in range(3):
            for got, wanted in zip((on_x.neg(), on_x + on_y, on_x + on_y[..., :1]), expected, strict=True):
                assert (got.shape, got.stride()) == (wanted.shape, wanted.stride())
                assert torch.equal(got.cpu(), wanted)
    assert native(session, "aten::neg")


@pytest.mark.parametrize("shape", [(0,), (3, 2)], ids=str)
def test_results_are_stored_without_a_copy_kernel(shape: tuple[int, ...], vendors: Vendors) -> None:
    """Laying a result out as the host would is the device's own work, not the vendor's, and no fallback."""
    made = vendors(Kernel("aten::neg", named("rows", lambda x: np.ascontiguousarray(-x))))
    host = torch.ones(shape[::-1]).t() if len(shape) == 2 else torch.ones(shape)
    with flroute.enable(made.name, fallback="error", default_device=False):
        x = made.put(torch.ones(shape[::-1])).t() if len(shape) == 2 else made.put(host)
        assert torch.neg(x).stride() == torch.neg(host).stride()
        assert torch.neg(x, out=torch.empty_like(x)).tolist() == (-host).tolist()
        assert x.neg_().tolist() == (-host).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1), (2, 0, 3)])
def test_zero_dimensional_and_empty_tensors(shape: tuple[int, ...], made: Made) -> None:
    host = torch.randn(shape)
    x = made.put(host)
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        for _ in range(3):
            for got, expected in (
                (torch.neg(x), -host),
                (torch.add(x, x), host + host),
                (x.clone().add_(x), 2 * host),
            ):
                assert (got.shape, got.stride(), got.dtype) == (
                    expected.shape,
                    expected.stride(),
                    expected.dtype,
                )
                assert got.tolist() == expected.tolist()
    assert decision_of(session, "aten::neg").calls == 3


@pytest.mark.parametrize(("shape", "other"), [((0, 1), (1,)), ((0, 3), (0, 1)), ((2, 0, 1), (1, 1))], ids=str)
def test_empty_results_have_the_hosts_strides(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Not those of PyTorch's rules for data-free tensors, which order the dimensions of an empty result otherwise."""
    x, y = torch.empty_strided(shape, [1] * len(shape)), torch.empty(other)
    on_x = torch.empty_strided(shape, [1] * len(shape), device="fl")
    for op in (torch.add, torch.mul, torch.eq):
        assert op(on_x, y.to("fl")).stride() == op(x, y).stride()


def test_numpy_scalars_are_zero_dimensional_results(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::sum", named("sum", lambda x, *, dtype=None: x.sum())))
    x = made.put(torch.ones(4))
    with flroute.enable(made.name, fallback="error", default_device=False):
        for _ in range(3):
            assert torch.sum(x).shape == ()
            assert torch.sum(x).item() == 4


def test_a_view_of_an_argument_as_a_result_is_copied(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::clone", named("lazy", lambda x, *, memory_format=None: x)))
    x = made.put(torch.ones(1000))
    with flroute.enable(made.name, fallback="allow", default_device=False):
        copies = [x.clone() for _ in range(3)]
    assert all(c.data_ptr() != x.data_ptr() for c in copies)
    x.zero_()
    del x
    _noise = [made.put(torch.full((1000,), 7.0)) for _ in range(20)]
    assert all(torch.equal(c.cpu(), torch.ones(1000)) for c in copies)


def test_optional_outputs_may_be_none(vendors: Vendors) -> None:
    def backward(
        grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
        output_padding: Any, groups: Any, mask: Any,
    ) -> Any:  # fmt: skip
        return None, None, grad.sum(axis=(0, 2, 3)) if mask[2] else None

    made = vendors(Kernel("aten::convolution_backward", backward))
    grad, x, weight = torch.randn(1, 2, 2, 2), torch.randn(1, 1, 3, 3), torch.randn(2, 1, 2, 2)
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        result = torch.ops.aten.convolution_backward(
            *map(made.put, (grad, x, weight)),
            [2],
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [False, False, True],
        )
    assert result[:2] == (None, None)
    torch.testing.assert_close(result[2].cpu(), grad.sum((0, 2, 3)))
    assert native(session, "aten::convolution_backward")


# -- against the host, over shapes and strides -----------------------------------------------------------------------


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Two host tensors that broadcast, and how each is permuted."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    other = [draw(st.sampled_from([size, 1])) for size in shape][draw(st.integers(0, len(shape))) :]
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    a, b = (torch.arange(float(np.prod(s, dtype=int))).reshape(s).to(dtype) for s in (shape, other))
    return a, b, draw(st.permutations(range(len(shape)))), draw(st.permutations(range(len(other))))


def permuted(t: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The same values and shape, the dimensions laid out in memory in another order."""
    return t.permute(order).contiguous().permute([order.index(i) for i in range(t.dim())])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operands(), st.booleans())
def test_add_is_the_hosts_for_any_shapes_and_strides(made: Made, given: Any, out: bool) -> None:
    a, b, order_a, order_b = given
    expected = permuted(a, order_a) + permuted(b, order_b)
    with flroute.enable(made.name, fallback="error", default_device=False):
        x, y = made.put(permuted(a, order_a)), made.put(permuted(b, order_b))
        for _ in range(2):
            got = torch.add(x, y, out=made.put(torch.empty(0, dtype=a.dtype))) if out else x + y
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            assert got.stride() == expected.stride() or out or not got.numel()
        in_place = made.put(permuted(a, order_a))
        if expected.shape == a.shape:
            in_place.add_(y)
            assert torch.equal(in_place.cpu(), expected)
    assert torch.equal(got.cpu(), expected)


def test_unsupported_in_an_in_place_call_leaves_the_target_to_the_next(vendors: Vendors) -> None:
    def decline(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        raise Unsupported("never")

    made = vendors(Kernel("aten::add.Tensor", decline), Kernel("aten::add.Tensor", add))
    x = made.put(torch.ones(2))
    with flroute.enable(made.name, fallback="error", default_device=False):
        x.add_(x)
        torch.add(x, x, out=x)
    assert x.tolist() == [4, 4]


def test_numbers_where_an_op_takes_a_tensor() -> None:
    """As graphs of AOTAutograd and of TorchScript have them: a constant that was a tensor without dimensions."""
    with flroute.enable():
        assert torch.ops.aten._to_copy.default(2, dtype=torch.float32).item() == 2.0
        assert torch.ops.aten._to_copy.default(2, device=torch.device("fl:0")).device.type == "fl"
        assert torch.ops.aten.copy_.default(torch.zeros(3), 2).tolist() == [2.0] * 3
        traced = torch.jit.trace(lambda x: x * 2, torch.ones(3))
        assert traced(torch.ones(3)).tolist() == [2.0] * 3
        assert "2" in str(traced.graph)
