"""A vendor's own collective is an ordinary kernel: chosen, rejected and accounted for like any other; gloo comes after it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import flroute
from flroute.errors import CollectiveError, DeviceError
from flroute.vendor import Kernel, Unsupported, hookimpl
from support import Vendors, decision_of, decisions_of, throw_away_vendors, why_rejected

vendors = pytest.fixture(throw_away_vendors)
pytestmark = pytest.mark.usefixtures("one_rank")

ALLREDUCE = "c10d::allreduce_"


def doubling(calls: list[dict[str, Any]], answer: Any = None) -> Callable[..., Any]:
    """A kernel that shows by what it writes that it ran."""

    def allreduce(
        tensors: Any,
        process_group: Any,
        reduce_op: Any,
        sparse_indices: Any,
        async_op: bool = True,
        timeout: int = -1,
    ) -> Any:
        calls.append({"group": process_group, "op": reduce_op, "async_op": async_op, "timeout": timeout})
        for array in tensors:
            assert isinstance(array, np.ndarray)
            np.multiply(array, 2, out=array)
        return answer

    return allreduce


def by_keywords(calls: list[dict[str, Any]], answer: Any = None) -> Kernel:
    return Kernel(ALLREDUCE, doubling(calls, answer), dtypes=(torch.float32,))


def test_a_vendors_kernel_does_its_collective(vendors: Vendors) -> None:
    calls: list[dict[str, Any]] = []
    made = vendors(by_keywords(calls))
    with flroute.enable(made.device) as session:
        x = made.put(torch.ones(3))
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.cpu().tolist() == [2, 2, 2]
    (call,) = calls
    assert call["group"] is dist.group.WORLD
    assert call["group"].size() == 1
    assert call["op"] == dist.ReduceOp.MAX
    assert call["async_op"] is False
    decision = decision_of(session, ALLREDUCE)
    assert (decision.route, decision.kernel) == ("native", f"{made.name}/python:allreduce")
    assert (decision.dtypes, decision.shapes, decision.calls) == (("float32",), ((3,),), 1)
    assert ALLREDUCE in str(session.report())


def test_what_it_does_not_serve_goes_to_gloo_with_the_reason(vendors: Vendors) -> None:
    def refuse(
        tensors: Any,
        process_group: Any,
        reduce_op: Any,
        sparse_indices: Any,
        async_op: bool = True,
        timeout: int = -1,
    ) -> None:
        raise Unsupported("one chip has nobody to talk to")

    made = vendors(Kernel(ALLREDUCE, refuse), by_keywords([]))
    with flroute.enable(
        made.device, default_device=False, fallback="error", deny=[f"{made.name}/python:allreduce"]
    ) as session:
        x = made.put(torch.ones(3))
        dist.all_reduce(x)
    assert x.cpu().tolist() == [1, 1, 1]
    decision = decision_of(session, ALLREDUCE)
    assert (decision.route, decision.kernel, decision.reason) == ("copy", "fl/gloo:allreduce_", "transfer")
    assert why_rejected(decision) == [("refuse", "unsupported"), ("allreduce", "policy")] or why_rejected(decision) == [
        ("allreduce", "policy"), ("refuse", "unsupported"),
    ]  # fmt: skip
    assert (decision.bytes_to_host, decision.bytes_to_device) == (12, 12)
    assert not session.fallbacks


def test_so_does_a_dtype_that_it_does_not_name(vendors: Vendors) -> None:
    made = vendors(by_keywords([]))
    with flroute.enable(made.device) as session:
        dist.all_reduce(made.put(torch.ones(3, dtype=torch.float64)))
    assert why_rejected(decision_of(session, ALLREDUCE)) == [("allreduce", "dtype")]


def test_an_asynchronous_kernel_answers_with_a_function_that_waits(vendors: Vendors) -> None:
    may_end, waited = threading.Event(), []

    def wait() -> None:
        assert may_end.wait(20)
        waited.append(1)

    made = vendors(by_keywords([], wait))
    x = made.put(torch.ones(2))
    work = dist.all_reduce(x, async_op=True)
    assert not work.is_completed()
    future = work.get_future()
    assert not future.done()
    may_end.set()
    assert future.wait()[0].data_ptr() == x.data_ptr()
    assert work.wait()
    assert work.is_completed()
    assert waited == [1]


def test_what_goes_wrong_in_it_reaches_who_waits(vendors: Vendors) -> None:
    def wait() -> None:
        raise ValueError("the link is down")

    made = vendors(by_keywords([], wait))
    with pytest.raises(ValueError, match="the link is down"):
        dist.all_reduce(made.put(torch.ones(2)))
    work = dist.all_reduce(made.put(torch.ones(2)), async_op=True)
    with pytest.raises(ValueError, match="the link is down"):
        work.wait()
    with pytest.raises(RuntimeError, match="the link is down"):
        dist.all_reduce(made.put(torch.ones(2)), async_op=True).get_future().wait()


def test_it_must_answer_with_nothing_or_such_a_function(vendors: Vendors) -> None:
    made = vendors(by_keywords([], 3))
    with pytest.raises(
        CollectiveError,
        match=r"must return nothing once it is done, or a function that waits .* returned int",
    ):
        dist.all_reduce(made.put(torch.ones(2)))


def test_a_plugin_brings_collectives_to_a_vendor_that_is_there(vendors: Vendors) -> None:
    made = vendors()

    class Link:
        @hookimpl
        def flroute_kernels(self, vendor: str) -> list[Kernel]:
            return [by_keywords([])] if vendor == made.name else []

    vendors.register(Link())
    x = made.put(torch.ones(2))
    dist.all_reduce(x)
    assert x.cpu().tolist() == [2, 2]


def test_ddp_reduces_with_it(vendors: Vendors) -> None:
    calls: list[dict[str, Any]] = []
    made = vendors(by_keywords(calls))
    model = torch.nn.Linear(2, 1, bias=False)
    x = torch.randn(4, 2)
    (expected,) = torch.autograd.grad(model(x).sum(), model.parameters())
    replica = torch.nn.parallel.DistributedDataParallel(model.to(made.device))
    replica(made.put(x)).sum().backward()
    assert [call["async_op"] for call in calls] == [True]
    torch.testing.assert_close(model.weight.grad.cpu(), 2 * expected)


def test_collectives_are_accounted_for_in_and_outside_of_sessions() -> None:
    with flroute.enable("reference") as session:
        out = torch.empty(3)
        work = dist.all_gather_into_tensor(out, torch.ones(3), async_op=True)
        assert work.wait()
        dist.barrier()
    gathered = decision_of(session, "c10d::_allgather_base_")
    assert (gathered.device, gathered.detail) == ("fl:0", "on the device's own memory")
    assert (gathered.bytes_to_host, gathered.bytes_to_device) == (12, 12)
    (barrier,) = decisions_of(session, "c10d::barrier")
    assert (barrier.route, barrier.bytes_to_host) == ("copy", 0)


def test_they_are_timed_where_a_session_times() -> None:
    with flroute.enable("reference", timing=True) as session:
        dist.all_reduce(torch.ones(3))
    seconds = decision_of(session, ALLREDUCE).seconds
    assert seconds is not None
    assert seconds > 0


def test_a_collective_that_is_over_keeps_no_memory() -> None:
    before = torch.fl.memory_allocated("fl:0")
    x = torch.ones(1000, device="fl:0")
    dist.all_reduce(x)
    del x
    gc.collect()
    assert torch.fl.memory_allocated("fl:0") == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0)),
            "PREMUL_SUM is NCCL's own; multiply the tensor",
        ),
        (
            lambda x: dist.all_reduce(x > 0, op=dist.ReduceOp.AVG),
            r"gloo cannot reduce torch.bool; convert the tensor first",
        ),
        (lambda x: dist.all_reduce(x.to(torch.uint64)), r"gloo cannot reduce torch.uint64"),
        (
            lambda x: dist.all_gather_into_tensor(x.double(), x),
            r"torch.float32.*torch.float64.*must have the same dtype",
        ),
    ],
)
def test_what_cannot_be_done_says_so(call: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        call(torch.ones(2, device="fl:0"))


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"c10d::allgather_: expected all tensors to be on the same device"):
        dist.all_gather([torch.ones(2, device="fl:1")], torch.ones(2, device="fl:0"))


def test_a_group_without_a_backend_for_the_device_says_how_to_make_one() -> None:
    host_only = dist.new_group(backend="gloo")
    with pytest.raises(RuntimeError, match=r"init_process_group\('flroute'\)"):
        dist.all_reduce(torch.ones(2, device="fl:0"), group=host_only)
