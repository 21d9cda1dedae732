"""What is wrong with a rank's own arguments is said at once, before the others are waited for."""

from __future__ import annotations

import re
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launch import Ranks

import flroute
from flroute.distributed.groups import group_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="fl")


def to_each(output: torch.Tensor, rows: int, splits: list[int] | None) -> None:
    dist.all_to_all_single(output, ones(rows), None, splits)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "too many outputs": (
        lambda: dist.all_gather([ones(2), ones(2)], ones(2)),
        "allgather_ of float32 [2] on rank 0 of process group '0': the list of outputs has 2 tensors for 1 ranks; give one",
    ),
    "an output of another size": (
        lambda: dist.all_gather([ones(3)], ones(2)),
        "output 0 has 3 elements [3], and each rank sends 2. Nothing was sent",
    ),
    "a whole that is no whole": (
        lambda: dist.all_gather_into_tensor(ones(3), ones(2)),
        "output_tensor has 3 elements [3], and 1 ranks with input_tensor have 2",
    ),
    "as many wholes as parts": (
        lambda: dist.group.WORLD.allgather_into_tensor_coalesced([ones(2)], [ones(2), ones(2)]),
        "outputs has 1 tensor and inputs 2; give as many",
    ),
    "lists of outputs": (
        lambda: dist.all_gather_coalesced([[ones(2)]], [ones(2), ones(2)]),
        "a list of outputs has 1 tensor, and each rank sends 2",
    ),
    "gathered at the root": (
        lambda: dist.gather(ones(2), [ones(2), ones(2)], dst=0),
        "gather_ of float32 [2], root_rank 0 on rank 0 of process group '0': the list of outputs has 2 tensors",
    ),
    "scattered from the root": (
        lambda: dist.scatter(ones(2), [ones(2), ones(2)], src=0),
        "scatter_ of float32 [2], root_rank 0 on rank 0 of process group '0': the list of inputs has 2 tensors",
    ),
    "reduced to parts": (
        lambda: dist.reduce_scatter(ones(2), [ones(2), ones(2)]),
        "the list of inputs has 2 tensors for 1 ranks; give one for each",
    ),
    "a part of another size": (
        lambda: dist.reduce_scatter(ones(3), [ones(2)]),
        "the output has 3 elements [3], and input 0 has 2",
    ),
    "a part that is no part": (
        lambda: dist.reduce_scatter_tensor(ones(2), ones(5)),
        "input_tensor has 5 elements [5], and 1 ranks with output_tensor have 2",
    ),
    "one to each": (
        lambda: dist.all_to_all([ones(2)], [ones(2), ones(2)]),
        "alltoall_ of float32 [2], float32 [2] on rank 0 of process group '0': the list of inputs has 2 tensors",
    ),
    "rows that are not there": (
        lambda: to_each(ones(4), 4, [3]),
        "input_split_sizes [3] add up to 3, and the input [4] has 4 rows",
    ),
    "splits for others": (
        lambda: to_each(ones(4), 4, [2, 2]),
        "input_split_sizes has 2 numbers for 1 ranks; give one for each",
    ),
    "a root that is not there": (
        lambda: dist.broadcast(ones(2), group_src=5),
        "broadcast_ of float32 [2], root_rank 5 on rank 0 of process group '0': the root is rank 5 of a group of 1",
    ),
    "a receiver that is not there": (
        lambda: dist.send(ones(2), group_dst=1),
        "send of float32 [2], dst 1, tag 0 on rank 0 of process group '0': the receiver is rank 1 of a group of 1",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_named_and_nothing_is_sent(case: str) -> None:
    call, why = CASES[case]
    with pytest.raises(flroute.CollectiveError, match=re.escape(why)):
        call()
    x = ones(2)
    dist.all_reduce(x)  # the group is as good as before
    assert x.tolist() == [1, 1]


@pytest.mark.usefixtures("one_rank")
def test_rows_that_no_splits_share_out() -> None:
    from flroute.distributed.arguments import rows_to_each

    values = {"input": ones(5), "output": ones(4), "input_split_sizes": [], "output_split_sizes": []}
    assert rows_to_each(values, 4, 0) == (
        "5 rows of the input [5] cannot be split evenly among 4 ranks; pass input_split_sizes"
    )
    assert rows_to_each(values | {"input": ones(8, 2)}, 4, 3) is None


@pytest.mark.usefixtures("one_rank")
def test_sparse_tensors_go_where_gloo_takes_them() -> None:
    x = torch.eye(2, device="fl").to_sparse()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.to_dense().tolist() == [[1, 0], [0, 1]]
    for call in (
        lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        lambda: dist.broadcast(x, 0),
        lambda: dist.all_reduce(torch.eye(2, device="fl").to_sparse_csr()),
    ):
        with pytest.raises(
            flroute.CollectiveError, match=r"layout torch\.sparse_\w+ can be in no collective but .*to_dense"
        ):
            call()


@pytest.mark.usefixtures("one_rank")
def test_an_error_that_nobody_expected_reaches_who_waits_and_the_queue_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, odd = group_of(dist.group.WORLD), IndexError("odd")
    landed: SimpleQueue[Any] = SimpleQueue()

    def agree(*_: object) -> None:
        raise odd

    monkeypatch.setattr(group.roll_call, "agree", agree)
    for _ in range(2):
        group.begin(group.roll_call.enter("kind", "title"), [0], list, SimpleNamespace(land=landed.put), 1.0)  # type: ignore[arg-type]
        assert landed.get(timeout=30) is odd


def test_nobody_hangs_and_all_go_on(ranks: Ranks) -> None:
    for text in ranks(2, "failures.py", "a_root_that_is_not_there"):
        assert "the root is rank 5 of a group of 2, whose ranks are 0 to 1. Nothing was sent" in text
        assert text.endswith("and then 2.0")
