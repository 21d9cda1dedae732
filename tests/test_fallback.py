"""The host fallback: what each policy does, that it is sound, and that every byte is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flroute
from flroute.vendor import Kernel, host_fallback
from support import Vendors, WithoutKernels, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

OP = "aten::erfinv"
"""An op the reference vendor leaves to the host, with its in-place and ``out=`` forms."""


@pytest.fixture(autouse=True)
def _unconfigured_structlog() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


# -- policies ------------------------------------------------------------------------------------------------------


def test_error_raises_before_any_work() -> None:
    x = torch.full((3,), 0.5, device="fl")
    out = torch.zeros(3, device="fl")
    small = torch.zeros(1, device="fl")
    with flroute.enable("reference", fallback="error") as session:
        for call in (
            lambda: torch.erfinv(x), x.erfinv_, lambda: torch.erfinv(x, out=out), lambda: torch.erfinv(x, out=small),
        ):  # fmt: skip
            for _ in range(2):
                with pytest.raises(flroute.FallbackError, match="aten::erfinv"):
                    call()
    assert (x.tolist(), out.tolist(), small.tolist()) == ([0.5] * 3, [0, 0, 0], [0])
    assert (x._version, out._version, small._version, small.shape) == (0, 0, 0, (1,))
    assert session.fallbacks == []


def test_error_draws_no_random_number(without_kernels: WithoutKernels) -> None:
    without_kernels("aten::cauchy_")
    x = torch.zeros(3, device="fl")
    state = torch.get_rng_state()
    with flroute.enable("reference", fallback="error"), pytest.raises(flroute.FallbackError):
        x.cauchy_()
    assert torch.equal(torch.get_rng_state(), state)


def test_error_says_what_where_why_and_what_to_do() -> None:
    with flroute.enable("reference:1", fallback="error"), pytest.raises(flroute.FallbackError) as caught:
        torch.erfinv(torch.zeros(2, 3))
    for words in (OP, "fl:1", "reference:1", "float32", "[2, 3]", "no_kernel", "fallback='warn'", "kernel"):
        assert words in str(caught.value)


def test_a_device_tensor_can_be_printed_whatever_the_policy() -> None:
    x = torch.full((2,), 0.5, device="fl")
    with flroute.enable("reference", fallback="error") as session:
        assert "0.5" in repr(x)
    assert not session.fallbacks


def test_warn_logs_once_per_op_and_reason(without_kernels: WithoutKernels) -> None:
    without_kernels("aten::lgamma")
    with structlog.testing.capture_logs() as logs, flroute.enable("reference", fallback="warn"):
        for dtype in (torch.float32, torch.float64):
            for shape in (2, 3):
                torch.erfinv(torch.zeros(shape, dtype=dtype))
        torch.lgamma(torch.ones(2))
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["op"] for log in warnings] == [OP, "aten::lgamma"]
    first = warnings[0]
    assert (first["event"], first["route"], first["reason"]) == ("host fallback", "fallback", "no_kernel")
    assert first["device"] == "fl:0"
    assert "reference has no kernel for aten::erfinv" in first["detail"]
    assert first["call_site"].startswith(__file__)


def test_warn_says_how_to_make_it_native() -> None:
    with structlog.testing.capture_logs() as logs, flroute.enable("reference", fallback="warn"):
        torch.erfinv(torch.zeros(2))
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert "kernel" in str(warning), "the remedy"
    assert tuple(map(tuple, warning["shapes"])) == ((2,),)


def test_warn_reaches_the_standard_logger_of_a_program_without_structlog(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="flroute"), flroute.enable("reference", fallback="warn"):
        torch.erfinv(torch.zeros(2))
        torch.erfinv(torch.zeros(2))
    (record,) = [record for record in caplog.records if record.name == "flroute"]
    assert record.levelno == logging.WARNING
    assert OP in record.getMessage()


def test_warn_warns_again_in_another_session() -> None:
    for _ in range(2):
        with structlog.testing.capture_logs() as logs, flroute.enable("reference", fallback="warn"):
            torch.erfinv(torch.zeros(2))
        assert [log["op"] for log in logs if log["log_level"] == "warning"] == [OP]


def test_allow_is_quiet_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    session = flroute.enable("reference", fallback="allow")
    with caplog.at_level(logging.WARNING), structlog.testing.capture_logs() as logs, session:
        torch.erfinv(torch.zeros(2))
    assert not [log for log in logs if log["log_level"] == "warning"]
    assert not caplog.records
    (fallback,) = session.fallbacks
    assert (fallback.op, fallback.reason, fallback.calls, fallback.kernel) == (OP, "no_kernel", 1, None)


def test_a_native_decision_is_information() -> None:
    with structlog.testing.capture_logs() as logs, flroute.enable("reference", fallback="warn"):
        torch.relu(torch.zeros(2))
    (log,) = [log for log in logs if log["op"] == "aten::relu"]
    assert (log["log_level"], log["kernel"], log["reason"]) == ("info", "reference/numpy:relu", "matched")


# -- soundness -----------------------------------------------------------------------------------------------------


@pytest.fixture
def counted_op() -> Iterator[tuple[Any, list[int]]]:
    """A custom op that the host implements, and a count of its runs."""
    runs: list[int] = []

    def bump(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.add_(1)

    def twice(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        if x.numel() == 5:
            raise ValueError("five is not served")
        return x * 2

    with torch.library._scoped_library("flroute_test_fallback", "FRAGMENT") as library:
        library.define("bump_(Tensor(a!) x) -> Tensor(a!)")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("bump_", bump, "CPU")
        library.impl("twice", twice, "CPU")
        yield torch.ops.flroute_test_fallback, runs


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("device", ["reference", "opaque"])
def test_the_host_runs_an_op_once(device: str, fast: bool, counted_op: Any) -> None:
    ops, runs = counted_op
    with flroute.enable(device, fallback="allow", fast_fallback=fast):
        x = torch.zeros(3)
        assert ops.bump_(x) is x
        assert (x.tolist(), len(runs)) == ([1, 1, 1], 1)
        assert ops.twice(x).tolist() == [2, 2, 2]
        assert len(runs) == 2


@pytest.mark.parametrize("device", ["reference", "opaque"])
def test_an_error_of_the_hosts_op_reaches_the_caller_and_nothing_is_retried(
    device: str, counted_op: Any
) -> None:
    ops, runs = counted_op
    with (
        flroute.enable(device, fallback="allow") as session,
        pytest.raises(ValueError, match="five is not served"),
    ):
        ops.twice(torch.zeros(5))
    assert len(runs) == 1
    assert not decisions_of(session, "flroute_test_fallback::twice"), "a call that failed is not counted"


def test_a_kernel_that_raised_is_not_followed_by_the_host(vendors: Vendors, counted_op: Any) -> None:
    ops, runs = counted_op

    def broken(x: Any) -> Any:
        raise ArithmeticError("the kernel's own")

    made = vendors(Kernel("flroute_test_fallback::twice", broken))
    x = made.put(torch.zeros(3))
    session = flroute.enable(made.name, fallback="allow")
    with session, pytest.raises(ArithmeticError, match="the kernel's own"):
        ops.twice(x)
    assert not runs


@pytest.mark.parametrize("device", ["reference", "opaque"])
@pytest.mark.parametrize("draw", [lambda t: t.cauchy_(), torch.poisson, torch.rand_like])
def test_random_ops_draw_the_hosts_numbers_once(device: str, draw: Callable[[Any], Any]) -> None:
    torch.manual_seed(3)
    expected = [draw(torch.ones(4)), draw(torch.ones(4))]
    torch.manual_seed(3)
    with flroute.enable(device, fallback="allow"):
        got = [draw(torch.ones(4)), draw(torch.ones(4))]
    assert [t.tolist() for t in got] == [t.tolist() for t in expected]


BAD_CALLS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "shapes": lambda put: torch.atan2(put(torch.ones(2)), put(torch.ones(3))),
    "shapes in place": lambda put: put(torch.ones(2)).atan2_(put(torch.ones(2, 2))),
    "dimension": lambda put: torch.cumprod(put(torch.ones(2)), 3),
    "index": lambda put: torch.take(put(torch.ones(2)), put(torch.tensor([7]))),
    "index_select": lambda put: torch.index_select(put(torch.ones(2)), 0, put(torch.tensor([9]))),
    "gather": lambda put: torch.gather(put(torch.ones(2, 2)), 1, put(torch.tensor([[5]]))),
    "embedding": lambda put: torch.nn.functional.embedding(put(torch.tensor([4])), put(torch.ones(2, 2))),
    "dtype": lambda put: torch.erfinv(put(torch.ones(2, dtype=torch.complex64))),
    "singular": lambda put: torch.linalg.inv(put(torch.zeros(2, 2))),
    "cholesky": lambda put: torch.linalg.cholesky(put(-torch.eye(2))),
    "inner": lambda put: torch.mm(put(torch.ones(2, 3)), put(torch.ones(2, 3))),
    "add": lambda put: torch.add(put(torch.ones(2)), put(torch.ones(3))),
    "addmm": lambda put: torch.nn.functional.linear(
        put(torch.ones(2, 3)), put(torch.ones(4, 5)), put(torch.ones(4))
    ),
    "cat": lambda put: torch.cat([put(torch.ones(2, 2)), put(torch.ones(3, 3))]),
    "view": lambda put: put(torch.ones(4)).view(3),
    "pool": lambda put: torch.nn.functional.max_pool2d(put(torch.ones(1, 1, 1, 1)), 3),
    "conv": lambda put: torch.nn.functional.conv2d(put(torch.ones(1, 2, 4, 4)), put(torch.ones(1, 3, 2, 2))),
    "softmax": lambda put: torch.softmax(put(torch.ones(2)), 4),
    "in place dtype": lambda put: put(torch.ones(2, dtype=torch.int64)).mul_(1.5),
    "in place broadcast": lambda put: put(torch.ones(2)).add_(put(torch.ones(2, 2))),
    "leaf": lambda put: put(torch.ones(2)).requires_grad_().add_(1),
    "cross entropy": lambda put: torch.nn.functional.cross_entropy(
        put(torch.ones(2, 3)), put(torch.tensor([0, 5]))
    ),
}


@pytest.mark.parametrize("device", ["reference", "opaque"])
@pytest.mark.parametrize("what", BAD_CALLS)
def test_a_callers_error_has_the_hosts_type_and_message(what: str, device: str) -> None:
    call = BAD_CALLS[what]
    with pytest.raises(Exception, match=r".") as expected:
        call(lambda t: t)
    target = flroute.device(device)
    with flroute.enable(device, fallback="allow", default_device=False):
        for _ in range(2):
            with pytest.raises(Exception, match=r".") as got:
                call(lambda t: t.to(target))
    assert isinstance(got.value, type(expected.value)), repr(got.value)
    assert str(expected.value).splitlines()[0] in str(got.value)


def test_a_callers_error_leaves_the_target_alone() -> None:
    x = torch.ones(2, device="fl")
    with flroute.enable("opaque", fallback="allow", default_device=False), pytest.raises(RuntimeError):
        x.atan2_(torch.ones(2, 2, device="fl"))
    assert (x.tolist(), x._version) == ([1, 1], 0)


@pytest.mark.parametrize("name", ["reference", "opaque"])
@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
@pytest.mark.parametrize("inference", [True, False], ids=["inference", "grad"])
def test_the_callers_autocast_does_not_change_a_fallbacks_dtype(
    name: str, in_session: bool, inference: bool
) -> None:
    host = torch.randn(2, 3, 3)
    x = host.to(flroute.device(name))
    policy = {"fallback": "allow", "order": {"aten::bmm": ["host"], "aten::convolution": ["host"]}}
    session = flroute.enable(name, default_device=False, **policy) if in_session else torch.enable_grad()
    with session, torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(inference):
        product = torch.bmm(x, x)
        solved = torch.linalg.solve(x, x)
        image = torch.nn.functional.conv1d(x, x)
    assert product.dtype == solved.dtype == image.dtype == torch.float32
    torch.testing.assert_close(product.cpu(), host @ host)


# -- copying fallback: the same results, every byte counted ------------------------------------------------------------


def bytes_of(session: flroute.Session, op: str) -> tuple[int, int]:
    """Bytes to the host and to the device that one op's fallbacks moved."""
    found = decisions_of(session, op)
    assert found
    assert all(d.route == "fallback" for d in found)
    return sum(d.bytes_to_host for d in found), sum(d.bytes_to_device for d in found)


def test_aliasing_moves_no_bytes() -> None:
    with flroute.enable("reference", fallback="allow") as session:
        x = torch.zeros(100)
        torch.erfinv(x)
        x.erfinv_()
    assert bytes_of(session, OP) == bytes_of(session, "aten::erfinv_") == (0, 0)


@pytest.mark.parametrize("name", ["reference", "opaque"])
def test_copying_counts_every_byte(name: str, without_kernels: WithoutKernels) -> None:
    without_kernels("aten::atan2", "aten::lgamma")
    device = flroute.device(name)
    x = torch.zeros(100).to(device)
    y, z = torch.zeros(10, dtype=torch.float64).to(device), torch.zeros(64).to(device)
    with flroute.enable(name, fallback="allow", fast_fallback=False, default_device=False) as session:
        torch.erfinv(x)
        y.erfinv_()
        torch.atan2(z, z)
        torch.lgamma(z[16:32])
    assert bytes_of(session, OP) == (400, 400)
    assert bytes_of(session, "aten::erfinv_") == (80, 80)
    assert bytes_of(session, "aten::atan2") == (256, 256), "one storage is fetched once"
    assert bytes_of(session, "aten::lgamma") == (64, 64), "only what the call can reach"


@pytest.mark.parametrize("name", ["reference", "opaque"])
def test_copying_out_counts_the_output(name: str) -> None:
    device = flroute.device(name)
    x, out = torch.zeros(8).to(device), torch.ones(8).to(device)
    grown = torch.empty(0).to(device)
    with flroute.enable(name, fallback="allow", fast_fallback=False, default_device=False) as session:
        torch.erfinv(x, out=out)
    assert bytes_of(session, "aten::erfinv.out") == (64, 32)
    with flroute.enable(name, fallback="allow", fast_fallback=False, default_device=False) as session:
        torch.erfinv(x, out=grown)
    assert bytes_of(session, "aten::erfinv.out") == (32, 32)
    assert out.tolist() == grown.tolist() == [0] * 8


ALIASED: dict[str, Callable[[torch.Tensor], Any]] = {
    "in place": lambda x: x.erfinv_(),
    "in place on a row": lambda x: x[1].erfinv_(),
    "in place on a column": lambda x: x[:, 1].erfinv_(),
    "in place on every second": lambda x: x[:, ::2].erfinv_(),
    "in place on the transpose": lambda x: x.t().erfinv_(),
    "out into itself": lambda x: torch.erfinv(x, out=x),
    "out into another row": lambda x: torch.erfinv(x[0], out=x[1]),
    "two views of one storage": lambda x: torch.atan2(
        x[0], x.t()[1][: x.shape[1]] if x.shape[0] >= x.shape[1] else x[1]
    ),
    "in place with itself": lambda x: x.atan2_(x),
    "in place with the transpose's row": lambda x: x[0].atan2_(x[1]),
    "in place with an overlapping view": lambda x: x[0, 1:].atan2_(x[0, :-1]),
    "in place on an expanded view": lambda x: x[:1].expand(3, x.shape[1]).erfinv_(),
    "overlapping windows in": lambda x: torch.erfinv(x.flatten().unfold(0, 2, 1)),
    "overlapping windows out": lambda x: x.flatten().unfold(0, 2, 1).erfinv_(),
    "a list with one tensor twice": lambda x: torch._foreach_erf([x, x[0], x]),
    "scatter": lambda x: x.index_put_((torch.tensor([0]),), x[1]),
    "put": lambda x: x.put_(torch.tensor([0, 1], device=x.device), x.flatten()[2:4].clone()),
    "masked": lambda x: x.masked_fill_(x > 0.2, 0.1),
    "returns its argument": lambda x: torch.ops.aten.lift(x.erfinv_()),
}


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(ALIASED)), st.integers(2, 4), st.integers(2, 4), st.integers(0, 3),
       st.sampled_from(["reference", "opaque"]), st.booleans())  # fmt: skip
def test_aliasing_arguments_come_out_as_on_the_host(
    what: str, rows: int, columns: int, offset: int, name: str, fast: bool
) -> None:
    call = ALIASED[what]
    values = torch.linspace(-0.9, 0.9, offset + rows * columns + 2)
    base = values.clone()
    on_device = values.to(flroute.device(name))
    expected = outcome(call, base[offset : offset + rows * columns].view(rows, columns))
    with flroute.enable(name, fallback="allow", fast_fallback=fast, default_device=False):
        view = on_device[offset : offset + rows * columns].view(rows, columns)
        got = outcome(call, view)
    assert type(got) is type(expected), f"{got!r} instead of {expected!r}"
    if isinstance(expected, Exception):
        assert str(expected) == str(got)
    else:
        torch.testing.assert_close(_on_host(got), _on_host(expected), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(on_device.cpu(), base, rtol=1e-5, atol=1e-6)


def outcome(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    try:
        return call(x)
    except RuntimeError as error:
        return error


def _on_host(value: Any) -> Any:
    return [t.cpu() for t in value] if isinstance(value, list | tuple) else value.cpu()


@pytest.mark.parametrize("name", ["reference", "opaque"])
def test_an_op_whose_output_size_depends_on_the_data_resizes_out(name: str) -> None:
    x = torch.tensor([0.0, 3.0, 0.0, 4.0])
    for start in (0, 7):
        expected = torch.nonzero(x, out=torch.empty((start, 1), dtype=torch.int64))
        device = flroute.device(name)
        out = torch.empty((start, 1), dtype=torch.int64).to(device)
        with flroute.enable(name, fallback="allow", default_device=False):
            got = torch.nonzero(x.to(device), out=out)
        assert got is out
        assert (out.shape, out.tolist()) == (expected.shape, expected.tolist())


# -- host work inside a kernel -----------------------------------------------------------------------------------------


def erfinv(x: Any) -> Any:
    return host_fallback("aten::erfinv", x)


@pytest.fixture
def hidden(vendors: Vendors) -> Any:
    return vendors(Kernel("aten::erfinv", erfinv), Kernel("aten::neg", named("neg", lambda x: -x)))


def test_host_work_in_a_kernel_is_accounted_for(hidden: Any) -> None:
    host = torch.tensor([0.0, 0.5])
    with flroute.enable(hidden.name, fallback="allow", default_device=False) as session:
        x = hidden.put(host)
        for _ in range(4):  # the hot path, too
            torch.testing.assert_close(torch.erfinv(x).cpu(), torch.erfinv(host))
    inside, native = sorted(decisions_of(session, "aten::erfinv"), key=lambda d: d.route)
    assert (native.route, native.calls, native.kernel) == ("native", 4, f"{hidden.name}/python:erfinv")
    assert (inside.route, inside.reason, inside.calls) == ("fallback", "in_kernel", 4)
    assert f"{hidden.name}/python:erfinv" in (inside.kernel or "") + inside.detail
    assert inside.device == str(hidden.device)
    assert session.fallbacks == [inside]


@pytest.mark.parametrize("warm", [False, True])
def test_host_work_in_a_kernel_raises_under_error(warm: bool, hidden: Any) -> None:
    x = hidden.put(torch.tensor([0.0, 0.5]))
    if warm:
        with flroute.enable(hidden.name, fallback="allow"):
            torch.erfinv(x)
    with flroute.enable(hidden.name, fallback="error"):
        torch.neg(x)
        for _ in range(2):
            with pytest.raises(flroute.FallbackError, match="aten::erfinv") as caught:
                torch.erfinv(x)
    assert f"{hidden.name}/python:erfinv" in str(caught.value)


def test_host_work_in_a_kernel_warns_once(hidden: Any) -> None:
    x = hidden.put(torch.tensor([0.0, 0.5]))
    with structlog.testing.capture_logs() as logs, flroute.enable(hidden.name, fallback="warn"):
        for _ in range(3):
            torch.erfinv(x)
    assert [(log["op"], log["reason"]) for log in logs if log["log_level"] == "warning"] == [
        (OP, "in_kernel")
    ]


def test_host_work_outside_a_kernel_is_refused(hidden: Any) -> None:
    with flroute.enable(hidden.name, fallback="allow"):
        torch.erfinv(hidden.put(torch.zeros(2)))
        with pytest.raises(flroute.FlrouteError, match="outside a kernel"):
            host_fallback("aten::erfinv", np.zeros(2))


def test_host_work_on_an_unknown_op_is_refused(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::neg", named("neg", lambda x: host_fallback("aten::no_such_op", x))))
    x = made.put(torch.zeros(2))
    with flroute.enable(made.name, fallback="allow"), pytest.raises(flroute.FlrouteError, match="no_such_op"):
        torch.neg(x)


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "no session"])
@pytest.mark.parametrize("vendor", ["reference", "opaque"])
def test_a_composite_that_calls_the_hosts_kernel_directly_goes_to_the_host(
    vendor: str, in_session: bool
) -> None:
    """``conj_physical_``'s composite does not ask the dispatcher, and PyTorch's kernel table has none for the device."""
    device = torch.device(str(flroute.device(vendor)))
    x = torch.tensor([1 + 2j, 3 - 4j])
    y = x.to(device)
    with flroute.enable(vendor, fallback="allow") if in_session else nullcontext():
        assert y.conj_physical_() is y
        outs = tuple(torch.empty(0, dtype=t, device=device) for t in (x.dtype, torch.float32, x.dtype))
        torch.svd(torch.eye(2, dtype=torch.complex64).to(device), out=outs)
    assert torch.equal(y.cpu(), x.conj())
    assert outs[1].tolist() == [1, 1]


def test_error_copies_no_large_tensor_to_the_host_to_word_an_error() -> None:
    x = torch.zeros(2**22 + 1, device="fl")  # more than 16 MiB
    with flroute.enable("reference", fallback="error"):
        with pytest.raises(flroute.FallbackError, match="aten::erfinv"):
            torch.erfinv(x, out=torch.zeros(0, dtype=torch.int32))
        with pytest.raises(RuntimeError, match="can't be cast") as caught:
            torch.erfinv(x[:2], out=torch.zeros(0, dtype=torch.int32))
    assert not isinstance(caught.value, flroute.FallbackError)
